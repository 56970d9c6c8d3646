"""Networks for planning: what a state is worth, what to do there, and a model of what actions lead to."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, final

import torch
from torch import Tensor, nn

from palaestra.core import ACTION_MASK, ConfigError, SpecTree, import_maker, tree_leaves
from palaestra.nn.config import NetworkConfig
from palaestra.nn.network import Network, mlp_of
from palaestra.nn.search import NOT_ALLOWED, Expansion, SearchSettings
from palaestra.ops import categorical_projection, valid_starts

__all__ = [
    "PLAYER",
    "LearnedModel",
    "PlanningNetwork",
    "PlanningOptions",
    "Prediction",
    "Simulator",
    "SimulatorModel",
    "allowed_logits",
]

PLAYER = "player"
"""The key of an observation that says who moves next, in games where somebody may move twice."""
_SLOPE = 0.001  # ε of equation (10) in Pohlen et al.


class PlanningOptions(NamedTuple):
    """What shapes a planning network besides its layers; JSON values, so that an artefact can say them."""

    discount: float
    """What the value of the next state counts; negative where the other player moves next."""
    max_return: float
    """The largest return, either way, that values can tell apart."""
    num_atoms: int
    """Atoms of values."""
    search: tuple[float, ...]
    """Fields of `SearchSettings`."""
    state_size: int = 0
    """Numbers in a learned state; 0 where a simulator is the model."""
    simulator: str = ""
    """`my_package:MyEnvironment`, the `Simulator`, where the model is not learned."""


class Simulator(Protocol):
    """A task that is known: environments of tensors whose observation tells the whole state."""

    @property
    def observation_spec(self) -> SpecTree:
        """Spec of an observation."""
        ...

    @property
    def action_spec(self) -> SpecTree:
        """Spec of its choices."""
        ...

    def transition(self, state: dict[str, Tensor], action: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """The next state, the reward, and whether the task is over: see `TensorEnvironment`.

        Args:
            state: leaves [B, ...].
            action: [B].
        """
        ...

    def observe(self, state: dict[str, Tensor]) -> Any:
        """Observation of the state.

        Args:
            state: leaves [B, ...].
        """
        ...

    def state_of(self, observation: Any) -> dict[str, Tensor]:
        """The state that looks like this.

        Args:
            observation: leaves [B, ...].
        """
        ...


class Prediction(NamedTuple):
    """A network's predictions for states."""

    logits: Tensor
    """[..., A] of the policy; masks are not applied."""
    atoms: Tensor
    """[..., Q] logits of the atoms of the value."""


class PlanningNetwork(nn.Module, ABC):
    """A policy, values, and a model, for `gumbel_search`.

    Values are distributions over atoms that are evenly spaced in scaled returns, and trained by cross-entropy:

        h(x) = sign(x) (√(|x| + 1) − 1) + ε x

    Schrittwieser et al. 2020, https://doi.org/10.1038/s41586-020-03051-4, appendix F, with h of Pohlen et al. 2018,
    https://arxiv.org/abs/1805.11593, equation (10).

    Args:
        observation_spec: of one observation; the key `player`, where it has one, says who moves next.
        num_actions: A, choices.
        options: what shapes it.

    Raises:
        ConfigError: there are fewer than two atoms, no return, or no simulation.
    """

    support: Tensor

    def __init__(self, observation_spec: SpecTree, num_actions: int, options: PlanningOptions) -> None:
        super().__init__()
        self.says_player = isinstance(observation_spec, dict) and PLAYER in observation_spec and options.discount < 0
        if self.says_player and (shape := getattr(observation_spec[PLAYER], "shape", None)) != ():
            raise ConfigError(
                f"the key {PLAYER!r} of an observation says who moves next, and its shape is {shape}; give one number, "
                "of shape (): a space such as Discrete(2)"
            )
        num_simulations, num_considered, *others = options.search
        self.search = SearchSettings(int(num_simulations), int(num_considered), *others)
        if options.num_atoms < 2 or not options.max_return > 0 or min(self.search[:2]) < 1:
            raise ConfigError(
                f"{options} and {self.search}: give at least 2 atoms, a return above 0, and 1 simulation and action"
            )
        self.num_actions, self.options = num_actions, options
        most = _scaled(torch.tensor(float(options.max_return)))
        self.register_buffer("support", torch.linspace(-1, 1, options.num_atoms) * most, persistent=False)

    @abstractmethod
    def predict(self, observation: Any) -> Prediction:
        """The network's predictions for observations.

        Args:
            observation: normalised, leaves [..., *observation].
        """

    @abstractmethod
    def states(self, observation: Any) -> tuple[dict[str, Tensor], Prediction]:
        """The states in which a search begins, and what the network says about them.

        Args:
            observation: normalised, leaves [B, ...].
        """

    @abstractmethod
    def expand(self, state: dict[str, Tensor], action: Tensor) -> Expansion:
        """States and rewards to which actions lead.

        Args:
            state: leaves [B, ...].
            action: [B].
        """

    def root(self, observation: Any) -> Expansion:
        """Where a search begins.

        Args:
            observation: normalised, leaves [B, ...]; a key `action_mask` says what is allowed.
        """
        state, said = self.states(observation)
        value = self.values(said.atoms)
        mask = observation[ACTION_MASK] if not isinstance(observation, Tensor) and ACTION_MASK in observation else None
        logits = allowed_logits(said.logits, mask)
        return Expansion(torch.zeros_like(value), torch.ones_like(value), logits, value, state)

    def discount_between(self, observation: Any, following: Any) -> Tensor | float:
        """What the value of what follows counts for who moves first: negative where the other player moves next.

        Args:
            observation: leaves [..., *observation]; the key `player` says who moves, else players take turns.
            following: after one move of that player.

        Returns:
            [...], or one number where players take turns.
        """
        discount = self.options.discount
        if not self.says_player:
            return discount
        return torch.where(observation[PLAYER] == following[PLAYER], -discount, discount)

    def values(self, atoms: Tensor) -> Tensor:
        """The means, in units of return.

        Args:
            atoms: [..., Q] logits.
        """
        return _unscaled((atoms.softmax(-1) * self.support).sum(-1))

    def targets(self, value: Tensor) -> Tensor:
        """Probabilities of the two atoms beside a return, whose mean it is.

        Args:
            value: [...] units of return; beyond the largest one it is cut.

        Returns:
            [..., Q].
        """
        scaled = _scaled(value)
        one = torch.zeros(*value.shape, len(self.support), device=value.device)
        one[..., 0] = 1.0
        return categorical_projection(one, self.support, scaled, torch.zeros_like(scaled))

    def _split(self, numbers: Tensor) -> Prediction:
        return Prediction(*numbers.split([self.num_actions, len(self.support)], -1))


def _simulator(name: str, make: Callable[..., Any], what: str) -> Simulator:
    """One game of a simulator, or why what a name means is none."""
    instead = (
        f"planning with the task itself needs {what} made with the number of games, its batch_size; name one as "
        "algorithm.simulator, such as palaestra.envs:ConnectFour, or learn a model of the task: muzero"
    )
    try:
        inspect.signature(make).bind(1)
    except TypeError as error:
        raise ConfigError(f"the simulator {name!r} cannot be made with 1 game: {error}; {instead}") from None
    except ValueError:  # it does not say what it takes
        pass
    made = make(1)
    if not hasattr(made, "state_of"):
        raise ConfigError(f"the simulator {name!r} made a {type(made).__name__}, without state_of; {instead}")
    return made


@final
class SimulatorModel(PlanningNetwork):
    """A network for policy and value; the model is the task itself.

    Silver et al. 2018, "AlphaZero", https://doi.org/10.1126/science.aar6404.

    Args:
        observation_spec: of one observation; the key `player`, where it has one, says who moves next.
        num_actions: A, choices.
        config: of the network.
        options: with a simulator.

    Raises:
        ConfigError: there is no such simulator, or the numbers are impossible.
    """

    def __init__(
        self, observation_spec: SpecTree, num_actions: int, config: NetworkConfig, options: PlanningOptions
    ) -> None:
        super().__init__(observation_spec, num_actions, options)
        self.network = Network(observation_spec, num_actions + options.num_atoms, config)
        what = "a TensorEnvironment with state_of, whose observation tells the whole state,"
        if not options.simulator:
            raise ConfigError(
                f"planning with the task itself needs {what} such as palaestra.envs:ConnectFour; name it as "
                "algorithm.simulator, or learn a model of the task: muzero"
            )
        make = import_maker(options.simulator, what, lambda kind: hasattr(kind, "state_of"))
        self.simulator: Simulator = _simulator(options.simulator, make, what)
        if self.simulator.observation_spec != observation_spec:
            raise ConfigError(
                f"{options.simulator} observes {self.simulator.observation_spec}, and the environment "
                f"{observation_spec}: a search needs to begin where the environment is; leave out wrappers, or name "
                "the environment itself as algorithm.simulator"
            )

    def require_agreement(self, rows: Any) -> None:
        """Refuses what another task than the simulator has collected, where searches foresee what does not happen.

        Args:
            rows: [L+1, N] time steps with the raw actions of the first L.

        Raises:
            ConfigError: the simulator says something else of what follows an action.
        """
        goes_on = valid_starts(rows.step_type)
        if not goes_on.any():
            return
        seen, after = rows.observation[:-1][goes_on], rows.observation[1:][goes_on]
        state, reward, over = self._after(self.simulator.state_of(seen), rows.action["choice"][goes_on])
        same = over == (rows.discount[1:][goes_on] == 0)
        given = rows.reward[1:][goes_on].float()
        earned = (reward.float() - given).abs() <= 1e-4 * given.abs() + 1e-5 * rows.reward.abs().max()
        rewarded = (given != 0) | (reward != 0)
        for found, given in zip(tree_leaves(self.simulator.observe(state)), tree_leaves(after), strict=True):
            same &= over | torch.isclose(found.float(), given.float(), 1e-4, 1e-5).unsqueeze(-1).flatten(1).all(1)
        wrong = (~same).sum() > 0.01 * len(same) or (~earned & rewarded).sum() > 0.1 * rewarded.sum()
        if wrong:  # not of single rows, whose numbers may be rounded otherwise here
            raise ConfigError(
                f"the environment goes on otherwise than the simulator, {type(self.simulator).__name__} without "
                "arguments: leave out wrappers, and env.kwargs or env.train_kwargs, that change the task (an opponent, "
                "say), or name a class that is made so as algorithm.simulator"
            )

    def _after(self, state: dict[str, Tensor], choice: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """The simulator's transition by choices [B] that are counted from 0."""
        spec: Any = self.simulator.action_spec
        return self.simulator.transition(state, (choice + spec.start).to(spec.dtype))

    def predict(self, observation: Any) -> Prediction:
        return self._split(self.network(observation))

    def states(self, observation: Any) -> tuple[dict[str, Tensor], Prediction]:
        return self.simulator.state_of(observation), self.predict(observation)

    def expand(self, state: dict[str, Tensor], action: Tensor) -> Expansion:
        after, reward, over = self._after(state, action)
        seen = self.simulator.observe(after)
        discount = self.discount_between(self.simulator.observe(state), seen)
        return self.root(seen)._replace(reward=reward, discount=torch.where(over, 0.0, discount), state=after)


@final
class LearnedModel(PlanningNetwork):
    """Three networks: observations to states, states and actions to states and rewards, states to policy and value.

    Schrittwieser et al. 2020, "MuZero", https://doi.org/10.1038/s41586-020-03051-4. Numbers of a state lie in [0, 1]:
    appendix G. Where observations say who moves, the second network says whether the same player moves again.

    Args:
        observation_spec: of one observation; see `PlanningNetwork`.
        num_actions: A, choices.
        config: of each network.
        options: with a `state_size`.

    Raises:
        ConfigError: the numbers are impossible.
    """

    def __init__(
        self, observation_spec: SpecTree, num_actions: int, config: NetworkConfig, options: PlanningOptions
    ) -> None:
        super().__init__(observation_spec, num_actions, options)
        size, atoms, inner = options.state_size, options.num_atoms, config.on_features()
        self.representation = Network(observation_spec, size, config)
        self.dynamics = mlp_of(size + num_actions, inner.hidden_sizes, size + atoms + self.says_player, inner)
        self.prediction = mlp_of(size, inner.hidden_sizes, num_actions + atoms, inner, out_gain=0.01)

    def predict(self, observation: Any) -> Prediction:
        return self._split(self.prediction(self.encode(observation)))

    def encode(self, observation: Any) -> Tensor:
        """States [..., S] of observations.

        Args:
            observation: normalised, leaves [..., *observation].
        """
        return _in_unit_range(self.representation(observation))

    def of_state(self, state: Tensor) -> Prediction:
        """The network's predictions for states.

        Args:
            state: [..., S].
        """
        return self._split(self.prediction(state))

    def step(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """States and rewards to which actions lead.

        Args:
            state: [..., S].
            action: [...].

        Returns:
            States [..., S]; logits of the atoms of the reward [..., Q]; and of the same player moving again [..., 1],
            where observations say who moves, else [..., 0].
        """
        taken = nn.functional.one_hot(action, self.num_actions).to(state.dtype)
        sizes = [state.shape[-1], len(self.support), int(self.says_player)]
        change, reward, again = self.dynamics(torch.cat([state, taken], -1)).split(sizes, -1)
        return _in_unit_range(state + change), reward, again

    def states(self, observation: Any) -> tuple[dict[str, Tensor], Prediction]:
        state = self.encode(observation)
        return {"state": state}, self.of_state(state)

    def expand(self, state: dict[str, Tensor], action: Tensor) -> Expansion:
        after, reward, again = self.step(state["state"], action)
        said = self.of_state(after)
        reward, value = self.values(torch.stack([reward, said.atoms])).unbind()
        discount = torch.full_like(value, self.options.discount)
        if self.says_player:
            discount = discount * (1 - 2 * again.squeeze(-1).sigmoid())  # on average over who moves next
        return Expansion(reward, discount, said.logits, value, {"state": after})


def allowed_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits with `NOT_ALLOWED` where a mask forbids an action.

    Args:
        logits: [..., A].
        mask: [..., A] bool or 0/1; `None` is all.
    """
    return logits if mask is None else torch.where(mask.bool(), logits, NOT_ALLOWED)


def _scaled(value: Tensor) -> Tensor:
    return value.sign() * ((value.abs() + 1).sqrt() - 1) + _SLOPE * value


def _unscaled(scaled: Tensor) -> Tensor:
    size = scaled.abs() + 1 + _SLOPE
    root = 2 * size / ((1 + 4 * _SLOPE * size).sqrt() + 1)  # with a difference of roots three digits are lost
    return scaled.sign() * (root - 1) * (root + 1)


def _in_unit_range(state: Tensor) -> Tensor:
    low, high = state.amin(-1, keepdim=True), state.amax(-1, keepdim=True)
    return (state - low) / (high - low).clamp(min=1e-5)
