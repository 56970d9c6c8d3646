"""`RecordVideo`: films of some episodes, as training sees them."""

import contextlib
import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

from palaestra.core import ConfigError, TimeStep, import_extra
from palaestra.core.reading import read_bytes
from palaestra.envs.contract.environment import SingleEnvironment
from palaestra.envs.wrappers.base import StatefulWrapper

__all__ = ["RecordVideo"]

_log = logging.getLogger(__name__)


@final
class RecordVideo(StatefulWrapper):
    """Films every n-th episode of environment 0 into `directory/episode_<number>.mp4` (or .gif).

    A film that is there already is kept: the next free number is taken. One that cannot be written, on a full disk say,
    ends with a warning, and the run goes on. Among `wrappers` it films evaluations, too;
    among `train_wrappers` training alone.

    Needs the extra `video`, and an environment made with `render_mode="rgb_array"`. Frames are written as they come, so
    long episodes need no memory. `palaestra play` films a trained policy without any wrapper.

    Args:
        directory: where films go; it is made.
        every: episodes from one film to the next, at least 1; the first is filmed.
        fps: frames per second.
        suffix: `mp4` or `gif`.

    Raises:
        ConfigError: `every` or `fps` is below 1, or the suffix is another.
        MissingExtraError: imageio is not installed.

    Examples:
        >>> from palaestra.envs import load
        >>> env = RecordVideo(load("CartPole-v1", kwargs={"render_mode": "rgb_array"}), "films", every=100)
        >>> env.close()
    """

    keeps_frames = True

    def __init__(
        self, env: SingleEnvironment, directory: str = "videos", every: int = 1, fps: int = 30, suffix: str = "mp4"
    ) -> None:
        super().__init__(env)
        if not type(every) is type(fps) is int or every < 1 or fps < 1 or suffix not in ("mp4", "gif"):
            raise ConfigError(
                f"RecordVideo(every={every}, fps={fps}, suffix={suffix!r}); both must be integers of at least "
                "1, and the suffix mp4 or gif"
            )
        self._imageio: Any = import_extra("imageio.v2", "video", "recording a video")
        self._directory, self._every, self._fps, self._suffix = Path(directory), every, fps, suffix
        self._number = 0
        self._writer: Any = None

    def begin_episode(self, seed: int) -> TimeStep:
        self._finish()
        time_step = super().begin_episode(seed)
        if self.env_id == 0 and self._number % self._every == 0:
            self._directory.mkdir(parents=True, exist_ok=True)
            names = (f"episode_{number}.{self._suffix}" for number in itertools.count(self._number))
            path = next(path for name in names if not (path := self._directory / name).exists())
            options = {"fps": self._fps, "macro_block_size": 2}
            if self._suffix == "gif":
                options = {"loop": 0, "duration": 1000 / self._fps}
            self._writer, self._path = self._imageio.get_writer(path, **options), path
            self._film(self.env.render())
        self._number += 1
        return time_step

    def advance(self, action: Any) -> TimeStep:
        time_step = self.env.advance(action)
        if self._writer is not None:
            self._film(self.env.render())
            if time_step.step_type == 2:
                self._finish()
        return time_step

    def snapshot(self) -> Any:
        return self._number

    def restore(self, snapshot: Any) -> None:
        self._number = snapshot

    def close(self) -> None:
        self._finish()
        self.env.close()

    def _film(self, picture: Any) -> None:
        self._try(self._writer.append_data, picture)

    def _finish(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            self._try(self._close, writer)

    def _close(self, writer: Any) -> None:
        writer.close()
        # ffmpeg writes the index of a film last, and imageio does not say that it has failed
        if self._suffix == "mp4" and b"moov" not in read_bytes(self._path, 1 << 40):
            raise OSError("ffmpeg could not finish it; is the disk full?")

    def _try(self, write: Callable[..., None], *args: Any) -> None:
        """Gives up the film if it cannot be written."""
        try:
            write(*args)
        except OSError as error:
            writer, self._writer = self._writer, None
            _log.warning("the film %s could not be written and is given up: %s", self._path, str(error).split("\n")[0])
            if writer is not None:
                with contextlib.suppress(OSError):
                    writer.close()
