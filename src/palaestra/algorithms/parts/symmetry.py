"""Mirror images of rows, for bodies that can do with the left what they can do with the right."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from palaestra.core import Batch, ConfigError, SpecTree, import_object, tree_map, tree_paths
from palaestra.core.spec import TensorSpec, map_spec, spec_leaves

__all__ = ["Symmetry", "symmetry_of"]

_BatchT = TypeVar("_BatchT", bound=Batch)
Mirror = Callable[[Any, Any], tuple[Any, Any]]


class Symmetry:
    """Minibatches with the mirror image of each row: Mittal et al. 2024, https://arxiv.org/abs/2403.04359, section 3.

    Args:
        name: `my_package:mirror`, a function from observations and actions, leaves [N, ...], to their mirror images.
            Actions are as the policy counts them: boxes flat, from -1 to 1 between their bounds, choices from 0.
        observation_spec: whole, as an environment emits it.
        raw_action_spec: of the policy.
        as_rows: whether images are learned from; if not, they only show what the policy does there.

    Raises:
        ConfigError: there is no such function, it gives something else, or the image of an image is another row.
    """

    def __init__(self, name: str, observation_spec: SpecTree, raw_action_spec: SpecTree, *, as_rows: bool) -> None:
        self._mirror: Mirror = import_object(name)
        self._as_rows = as_rows
        rows = [map_spec(_drawn, spec) for spec in (observation_spec, raw_action_spec)]
        try:
            once = self.image(*rows)
            twice = self.image(*once)
            pairs = [(_shapes(one), _shapes(other)) for one, other in zip(rows, once, strict=True)]
        except Exception as error:
            raise ConfigError(
                f"algorithm.symmetry is {name!r}, which failed with observations and actions of this environment: "
                f"{type(error).__name__}: {error}. It takes both, leaves [N, ...], and returns both"
            ) from error
        for what, (given, made) in zip(("observations", "actions"), pairs, strict=True):
            if given != made:
                raise ConfigError(f"the mirror image {name!r} of {what} has {made}; {given} are needed")
        for what, one, other in zip(("observations", "actions"), rows, twice, strict=True):
            for path, leaf in tree_paths(one).items():
                if not torch.allclose(leaf.double(), tree_paths(other)[path].double(), atol=1e-4):
                    raise ConfigError(
                        f"the mirror image {name!r} of a mirror image is another row, in {what} {path or ''}: each "
                        "element goes to its counterpart with the same sign as back"
                    )

    def image(self, observation: Any, action: Any) -> tuple[Any, Any]:
        """The mirror images.

        Args:
            observation: leaves [N, ...], raw.
            action: [N, ...] as the policy counts it.
        """
        observation, action = self._mirror(observation, action)
        return _batch(observation), _batch(action)

    def doubled(self, batch: _BatchT) -> _BatchT:
        """A minibatch of N rows, and behind them their images, with the same numbers: as likely, as good.

        Args:
            batch: with `observation`, `action` and `valid`, leaves [N, ...].
        """
        observation, action = self.image(batch["observation"], batch["action"])
        both = batch.map(lambda leaf: torch.cat([leaf, leaf]))
        pairs = {
            name: tree_map(_joined, batch[name], of) for name, of in (("observation", observation), ("action", action))
        }
        if not self._as_rows:
            pairs["valid"] = torch.cat([batch["valid"], torch.zeros_like(batch["valid"])])
        return both.replace(**pairs)

    def error(self, observation: Any, mean: Tensor) -> Tensor:
        """How far the mean actions of images are from the images of the mean actions, [N]; towards the latter.

        Args:
            observation: [2N, ...], of rows and of their images.
            mean: [2N, A] actions there.
        """
        count = len(mean) // 2
        seen = tree_map(lambda leaf: leaf[:count], observation)
        _, wanted = self.image(seen, mean[:count].detach())
        return (mean[count:] - wanted).square().mean(-1)


def symmetry_of(config: Any, policy: Any) -> Symmetry | None:
    """The mirror that a configuration asks for.

    Args:
        config: with `symmetry`, `symmetric_rows` and `symmetry_cost`.
        policy: that is learned.

    Raises:
        ConfigError: it does not fit, or the costs and memories that there are.
    """
    if config.symmetry is None:
        if config.symmetry_cost or not config.symmetric_rows:
            raise ConfigError(
                f"symmetry_cost is {config.symmetry_cost} and symmetric_rows {config.symmetric_rows}, but there is no "
                "symmetry; name one, such as palaestra.envs:Go1Joystick.mirror"
            )
        return None
    if config.network.recurrent:
        raise ConfigError(
            "a symmetry says what the mirror image of a row is, and not of a memory; leave out network.recurrent, or "
            "stack frames"
        )
    if config.symmetry_cost and not all(
        leaf.dtype.is_floating_point for leaf in spec_leaves(policy.action_spec).values()
    ):
        raise ConfigError("symmetry_cost compares mean actions, and this action space has choices; use symmetric_rows")
    if not (config.symmetric_rows or config.symmetry_cost):
        raise ConfigError("there is a symmetry, but symmetric_rows is off and symmetry_cost 0: it would do nothing")
    return Symmetry(config.symmetry, policy.whole_spec, policy.raw_action_spec, as_rows=config.symmetric_rows)


def _joined(one: Tensor, other: Tensor) -> Tensor:
    return torch.cat([one, other.to(one.dtype)])


def _shapes(rows: Any) -> dict[str, tuple[int, ...]]:
    return {path: tuple(leaf.shape) for path, leaf in tree_paths(rows).items()}


def _batch(rows: Any) -> Any:
    return Batch.of(rows) if isinstance(rows, dict) else rows


def _drawn(spec: TensorSpec) -> Tensor:
    """Two rows: random numbers, and the first of choices."""
    shape, generator = (2, *spec.shape), torch.Generator().manual_seed(0)
    return (torch.rand(shape, generator=generator) if spec.dtype.is_floating_point else torch.zeros(shape)).to(
        spec.dtype
    )
