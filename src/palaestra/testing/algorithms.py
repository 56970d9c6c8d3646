"""`AlgorithmContract`, `GradientAlgorithmContract`: what every algorithm has to keep."""

import copy
import random
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.testing import assert_close

from palaestra.algorithms import Algorithm, GradientAlgorithm, Losses
from palaestra.buffers import ReplayBuffer
from palaestra.core import Batch, ConfigError, NonFiniteError, Offline, OnPolicy, StepType, minibatches, shards
from palaestra.envs import Environment
from palaestra.policies import Phase
from palaestra.rollout import Collector

__all__ = ["AlgorithmContract", "GradientAlgorithmContract"]


class Learning(NamedTuple):
    """An algorithm, and a collector whose buffer holds what it learns from."""

    algorithm: Any
    collector: Collector


class AlgorithmContract(ABC):
    """A suite for an algorithm with one kind of environment.

    Examples:
        >>> from palaestra import PPO, EnvConfig, PPOConfig, create_environment
        >>> class TestMine(AlgorithmContract):
        ...     def environment(self):
        ...         return create_environment(EnvConfig(name="palaestra.envs.tiny:Catch", num_envs=3), seed=3)
        ...
        ...     def algorithm(self, env):
        ...         return PPO(env.observation_spec, env.action_spec, PPOConfig(unroll_length=12, mini_batch_size=10))
        >>> TestMine().test_an_update_with_ends_of_episodes_inside_is_finite()
    """

    unroll_length: int = 12
    """Rows of each lane that are collected first; episodes have to end in them."""

    @abstractmethod
    def environment(self) -> Environment:
        """Several lanes, the same at each call."""

    @abstractmethod
    def algorithm(self, env: Environment) -> Any:
        """A small one, the same at each call: a few units, a few gradient steps, learning from the beginning.

        Args:
            env: from `environment`.
        """

    def learning(self) -> Learning:
        """An algorithm beside a buffer with rows of it; one that learns from data gets rows of its own policy."""
        env = self.environment()
        algorithm = self.algorithm(env)
        if isinstance(algorithm.plan, Offline):
            policy: Any = algorithm.policy
            buffer = ReplayBuffer(
                *(10 * self.unroll_length, env.batch_size),
                observation_spec=env.observation_spec,
                action_spec=policy.raw_action_spec,
                state_spec=policy.stored_state_spec or None,
            )
            collector = Collector(env, policy, buffer)
        else:
            collector = Collector.of(env, algorithm)
        collector.unroll(self.unroll_length)
        return Learning(algorithm, collector)

    # -- the suite

    def test_optimizers_cover_each_trainable_parameter_exactly_once(self) -> None:
        """What needs a gradient has one optimizer, what has none is frozen."""
        algorithm, _ = self.learning()
        covered = [id(p) for optimizer in algorithm.model.optimizers.values() for p in optimizer.parameters]
        trainable = {id(p) for p in algorithm.model.parameters() if p.requires_grad}
        assert len(covered) == len(set(covered))
        assert set(covered) == trainable
        assert {id(p) for p in algorithm.policy.parameters()} <= {id(p) for p in algorithm.model.parameters()}

    def test_an_update_reaches_every_trainable_parameter(self) -> None:
        """Where it can go from data to steps of its own, an update of each."""
        algorithm, collector = self.learning()
        before = parameters(shaken(algorithm))
        algorithm.update(collector.buffer)
        if isinstance(algorithm.plan, Offline) and not algorithm.imitates:
            algorithm.plan = algorithm.plan.online()
            algorithm.update(collector.buffer)
        trained = {name for optimizer in algorithm.model.optimizers.values() for name in optimizer.names}
        assert {f"component.{name}" for name in trained} <= set(different(before, parameters(algorithm)))

    def test_an_update_raises_the_version_by_one_whatever_its_gradient_steps(self) -> None:
        """An unroll is learned from once; a second time is refused."""
        algorithm, collector = self.learning()
        assert algorithm.policy_version == 0
        info = algorithm.update(collector.buffer)
        assert (algorithm.policy_version, info.policy_version) == (1, 1)
        if isinstance(algorithm.plan, OnPolicy):
            before = parameters(algorithm)
            with _raises(ConfigError) as caught:
                algorithm.update(collector.buffer)
            assert "an on-policy update needs new rows" in str(caught.error)
            assert algorithm.policy_version == 1 and not different(before, parameters(algorithm))
        collector.unroll(self.unroll_length)
        assert int(collector.buffer.newest(1).policy_version.max()) == 1
        assert algorithm.update(collector.buffer).policy_version == 2

    def test_an_update_with_ends_of_episodes_inside_is_finite(self) -> None:
        """LAST rows, terminated and truncated, lie inside the data."""
        algorithm, collector = self.learning()
        for _ in range(3):
            assert (collector.buffer.recent("step_type", self.unroll_length) == StepType.LAST).any()
            info = algorithm.update(collector.buffer)
            assert all(np.isfinite(value) for value in info.metrics.values()), info.metrics
            collector.unroll(self.unroll_length)
        assert all(torch.isfinite(value).all() for value in parameters(algorithm).values())

    def test_saved_and_loaded_it_learns_on_with_the_same_bits(self) -> None:
        """Weights, optimizers, generators, schedules and counters are in `state_tensors`."""
        algorithm, collector = self.learning()
        algorithm.update(collector.buffer)
        twin = self.algorithm(collector.env)
        twin.load_state_tensors(copy.deepcopy(algorithm.state_tensors()))
        twin.set_progress(algorithm.progress)
        collector.unroll(self.unroll_length)
        rows = copy.deepcopy(collector.buffer)
        algorithm.update(collector.buffer)
        twin.update(rows)
        assert not different(parameters(algorithm), parameters(twin))


class GradientAlgorithmContract(AlgorithmContract):
    """The suite of `AlgorithmContract`, and what holds where an algorithm states `losses`.

    Examples:
        >>> from palaestra import DQN, DQNConfig, EnvConfig, create_environment
        >>> class TestMine(GradientAlgorithmContract):
        ...     def environment(self):
        ...         return create_environment(EnvConfig(name="palaestra.envs.tiny:Catch", num_envs=3), seed=3)
        ...
        ...     def algorithm(self, env):
        ...         config = DQNConfig(capacity=120, learning_starts=0, mini_batch_size=10)
        ...         return DQN(env.observation_spec, env.action_spec, config)
        >>> TestMine().test_losses_read_weights_and_change_nothing()
    """

    def test_gradients_of_uneven_shards_combine_to_the_gradient_of_the_whole(self) -> None:
        """Weighted by valid rows. Where networks mix rows, parts are refused."""
        algorithm, collector = self.learning()
        minibatch = first_minibatch(shaken(algorithm), collector)
        whole = algorithm.gradients(minibatch)
        if algorithm.mixes_rows:
            with _raises(ConfigError):
                algorithm.apply([whole, whole])
            return
        half, *others = shards(minibatch, algorithm.plan, 2)
        uneven = [half, *(part for other in others for part in shards(other, algorithm.plan, 2))]
        gradients = [algorithm.gradients(part) for part in uneven]
        counts = [float(gradient.num_valid) for gradient in gradients]
        assert sum(counts) == float(whole.num_valid)
        for name, gradient in whole.values.items():
            parts = [count * part.values[name] for count, part in zip(counts, gradients, strict=True)]
            assert_close(sum(parts) / sum(counts), gradient, rtol=1e-4, atol=1e-6)
        twin = self.algorithm(collector.env)
        twin.load_state_tensors(algorithm.state_tensors())
        together, apart = algorithm.apply(whole), twin.apply(gradients)
        for norm in (name for name in together if name.startswith("gradient_norm/")):
            assert_close(apart[norm], together[norm], rtol=1e-4, atol=1e-6)
        assert twin.num_gradient_steps == algorithm.num_gradient_steps == 1

    def test_a_shard_without_valid_rows_counts_nothing(self) -> None:
        """A gradient worker may be handed nothing but ends of episodes."""
        algorithm, collector = self.learning()
        minibatch = first_minibatch(algorithm, collector)
        if "valid" not in minibatch:  # every row that this algorithm draws is valid
            return
        empty = minibatch.replace(valid=torch.zeros_like(minibatch.valid))
        whole, nothing = algorithm.gradients(minibatch), algorithm.gradients(empty)
        assert float(nothing.num_valid) == 0
        assert all(torch.isfinite(gradient).all() for gradient in nothing.values.values())
        other = self.algorithm(collector.env)
        other.apply([whole, nothing])
        algorithm.apply(whole)
        assert not different(parameters(algorithm), parameters(other))

    def test_losses_read_weights_and_change_nothing(self) -> None:
        """No parameter, buffer, generator, optimizer, batch or global random state moves."""
        algorithm, collector = self.learning()
        minibatch = first_minibatch(algorithm, collector)
        batch_before = copy.deepcopy(dict(minibatch.items()))
        before, generators = whole_state(algorithm), global_generators()
        first, second = algorithm.losses(minibatch), algorithm.losses(minibatch)
        algorithm.gradients(minibatch)
        assert not different(whole_state(algorithm), before)
        assert global_generators() == generators
        assert all(torch.equal(first.terms[term], second.terms[term]) for term in first.terms)
        for field, value in batch_before.items():
            assert not isinstance(value, Tensor) or torch.equal(minibatch[field], value), field
        assert all(parameter.grad is None for parameter in algorithm.model.parameters())

    def test_a_gradient_that_is_not_finite_raises(self) -> None:
        """The error names component and numbers of the step and holds the minibatch; the command line ends with 4."""
        algorithm, collector = self.learning()
        original = algorithm.losses

        def losses(batch: Any) -> Losses:
            stated = original(batch)
            return stated._replace(terms={name: term * torch.nan for name, term in stated.terms.items()})

        algorithm.losses = losses
        with _raises(NonFiniteError) as caught:
            algorithm.update(collector.buffer)
        assert caught.error.exit_code == 4
        assert "is not finite" in str(caught.error)
        assert caught.error.batch is not None
        assert not algorithm.policy.updating

    def test_the_policy_is_updating_only_during_an_update(self) -> None:
        """And is as before after an exception."""
        algorithm, collector = self.learning()
        policy, flags = algorithm.policy, []

        def losses(batch: Any) -> Losses:
            flags.append((policy.training, policy.updating))
            raise InterruptedError

        algorithm.losses = losses
        assert (policy.training, policy.updating) == (True, False)
        with _raises(InterruptedError):
            algorithm.update(collector.buffer)
        assert flags == [(True, True)]
        assert (policy.training, policy.updating, algorithm.policy_version) == (True, False, 0)
        with policy.in_phase(Phase.EVAL):
            assert (policy.training, policy.updating) == (False, False)


class _raises:  # noqa: N801 - reads as what it does
    """A block that has to raise; the error is kept."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind, self.error = kind, Any

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        assert error is not None, f"no {self.kind.__name__} was raised"
        self.error = error
        return isinstance(error, self.kind)


def prepared(algorithm: GradientAlgorithm[Any, Any], collector: Collector) -> Batch:
    """All the data of one update, ready for `losses`."""
    generator = torch.Generator().manual_seed(1)
    with algorithm.policy.in_phase(Phase.UPDATE):
        drawn = collector.buffer.draw(algorithm.plan, generator)
        return algorithm.noise(algorithm.preprocess(drawn, collector.buffer), generator)


def minibatches_of(algorithm: GradientAlgorithm[Any, Any], batch: Batch) -> list[Batch]:
    """The minibatches of an update, in an order of their own."""
    return list(minibatches(batch, algorithm.plan, generator=torch.Generator().manual_seed(2)))


def first_minibatch(algorithm: GradientAlgorithm[Any, Any], collector: Collector) -> Batch:
    """One of them."""
    return minibatches_of(algorithm, prepared(algorithm, collector))[0]


def shaken(algorithm: Any) -> Any:
    """Away from the initial weights, where policies are almost uniform and values almost zero."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in algorithm.model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return algorithm


def whole_state(algorithm: Algorithm[Any, Any]) -> dict[str, Any]:
    """Everything that an algorithm and its policy hold, copied."""
    state = {**algorithm.state_tensors(), **{f"policy.{k}": v for k, v in algorithm.policy.state_dict().items()}}
    return copy.deepcopy(state)


def global_generators() -> list[Any]:
    """The states of the global generators, which nothing draws from."""
    numbers: Any = np.random.get_state()  # the legacy generator is the global one
    return [torch.get_rng_state().tolist(), numbers[1].tolist(), numbers[2], random.getstate()]


def parameters(algorithm: Algorithm[Any, Any]) -> dict[str, Tensor]:
    """Copies of all parameters and buffers."""
    return {name: value.detach().clone() for name, value in algorithm.model.state_dict().items()}


def different(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Names whose values are not bit-equal."""
    assert a.keys() == b.keys()

    def equal(x: Any, y: Any) -> bool:
        return torch.equal(x, y) if isinstance(x, Tensor) else x == y

    return [name for name in a if not equal(a[name], b[name])]
