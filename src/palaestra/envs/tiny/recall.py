"""`Recall`: a cue that has to be remembered."""

from typing import Any, final

import gymnasium
import numpy as np
from gymnasium import spaces

__all__ = ["Recall"]


@final
class Recall(gymnasium.Env[np.ndarray, np.int64]):
    """The first observation shows one of k cues; `delay` steps later a question is asked, and the cue is the answer.

    Observations have k + 1 numbers: the cue as a one-hot code in the first one only, and a last number that is 1 where
    the question is asked. In between they are zeros, and actions do nothing. The right answer pays 1, any other 0, and
    the episode ends. The best policy's return is 1. All questions look alike, so no policy without memory can do better
    than 1/k.

    Args:
        num_cues: k, at least 2.
        delay: steps from the cue to the question, at least 1.

    Examples:
        >>> env = Recall(num_cues=2, delay=2)
        >>> cue = int(env.reset(seed=0)[0].argmax())
        >>> env.step(np.int64(0))[0], env.step(np.int64(0))[0], env.step(np.int64(cue))[1:3]
        (array([0., 0., 0.], dtype=float32), array([0., 0., 1.], dtype=float32), (1.0, True))
    """

    def __init__(self, num_cues: int = 2, delay: int = 3) -> None:
        self.observation_space = spaces.Box(0, 1, (num_cues + 1,), np.float32)
        self.action_space = spaces.Discrete(num_cues)
        self._num_cues, self._delay = num_cues, delay
        self._cue = self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Draws and shows a cue.

        Args:
            seed: of the cue.
            options: none exist.
        """
        super().reset(seed=seed)
        self._cue, self._steps = int(self.np_random.integers(self._num_cues)), 0
        return self._shown(self._cue), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Waits, or answers.

        Args:
            action: the answer, where the question was asked.
        """
        if self._steps == self._delay:
            return self._shown(None), float(action == self._cue), True, False, {}
        self._steps += 1
        return self._shown(self._num_cues if self._steps == self._delay else None), 0.0, False, False, {}

    def _shown(self, index: int | None) -> np.ndarray:
        observation = np.zeros(self._num_cues + 1, np.float32)
        if index is not None:
            observation[index] = 1
        return observation
