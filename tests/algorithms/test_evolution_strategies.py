"""Tests of `palaestra.algorithms.evolution_strategies`."""

import dataclasses
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import palaestra
from palaestra.algorithms.evolution_strategies import _tried
from palaestra.buffers import ReplayBuffer
from palaestra.core import Batch, ConfigError, DiscreteSpec, NonFiniteError, OnPolicy, TensorSpec, TimeStep
from palaestra.ops import centered_ranks, episode_returns
from palaestra.testing.buffers import FIRST, LAST, MID
from tests.algorithms.parts import KINDS, collected, collector_for, environment, make


class Source:
    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def draw(self, plan: object, generator: torch.Generator) -> Batch:
        return self.batch

    def write_back(self, indices: torch.Tensor, priority: torch.Tensor) -> None:
        raise AssertionError("there are no priorities")


def ascent(algorithm: Any, unroll: Batch) -> torch.Tensor:
    """The step of an update that leaves the weights as they are."""
    found = {}
    algorithm.model.apply_gradients = lambda gradients: found.update(gradients[0]) or {"policy": torch.tensor(0.0)}
    algorithm.update(Source(unroll))
    return torch.cat([-gradient.flatten() for gradient in found.values()])


@pytest.mark.parametrize("kind", ["discrete", "continuous", "masked"])
def test_the_step_is_the_sum_of_perturbations_weighted_by_ranks(kind):
    """Salimans et al., algorithm 2: seeds in the rows are enough to make the step again, slowly, lane by lane."""
    algorithm, collector = collected("evolution_strategies", kind, noise_std=0.2)
    unroll = collector.buffer.draw(algorithm.plan, torch.Generator())
    score = episode_returns(unroll.reward, unroll.step_type)
    expected = torch.zeros(sum(p.numel() for p in algorithm.policy.network.parameters()))
    for lane, utility in enumerate(centered_ranks(score)):
        expected += utility * algorithm.policy.noise(unroll.policy_info.seed[0, lane : lane + 1])[0]
    expected /= len(score) * 0.2
    assert_close(ascent(algorithm, unroll), expected)


def test_a_step_that_is_not_finite_raises_and_the_unroll_is_kept():
    """F23: it counted as an update that was made."""
    algorithm, collector = collected("evolution_strategies", "discrete", noise_std=1e-44)
    before = [parameter.clone() for parameter in algorithm.policy.network.parameters()]
    with pytest.raises(NonFiniteError, match="the gradient of 'policy' is not finite after 0") as caught:
        algorithm.update(collector.buffer)
    assert "reward" in caught.value.batch
    assert all(map(torch.equal, algorithm.policy.network.parameters(), before))


def test_all_rows_of_a_lane_name_the_perturbation_that_acted():
    algorithm, collector = collected("evolution_strategies", "continuous")

    def seeds() -> torch.Tensor:
        return collector.buffer.draw(algorithm.plan, torch.Generator()).policy_info.seed.clone()

    first = seeds()
    assert (first == first[0]).all()
    assert first[0, 0] == -first[0, 1]  # mirrored
    collector.unroll(12)
    assert torch.equal(seeds()[0], first[0])
    algorithm.update(collector.buffer)
    collector.unroll(12)
    assert not torch.equal(seeds()[0], first[0])


def test_one_lane_has_nothing_to_be_compared_with():
    algorithm, collector = collected("evolution_strategies", "discrete")
    unroll = collector.buffer.draw(algorithm.plan, torch.Generator())
    with pytest.raises(ConfigError, match="at least 2 environments"):
        algorithm.update(Source(unroll.map(lambda leaf: leaf[:, :1])))
    assert not algorithm.policy.updating


def test_lanes_of_unequal_length_are_scored_by_their_own_rows():
    """Whole episodes from every lane: behind a shorter one lie copies, which do not count."""
    algorithm, collector = collected("evolution_strategies", "continuous", noise_std=0.2)
    algorithm.update(collector.buffer)
    collector.collect(n_episode=[1, 2, 3])
    unroll = collector.buffer.draw(algorithm.plan, torch.Generator())
    counts = collector.buffer.positions.counts.tolist()
    assert min(counts) < max(counts) == len(unroll.valid)
    seed = unroll.policy_info.seed[0].clone()  # all lanes begin together
    unroll.policy_info.seed[min(counts) :, counts.index(min(counts))] = 0.0
    ends = [count + 1 for count in counts]
    alone = [episode_returns(unroll.reward[:t, [b]], unroll.step_type[:t, [b]]) for b, t in enumerate(ends)]
    expected = centered_ranks(torch.cat(alone)) @ algorithm.policy.noise(seed) / (3 * 0.2)
    assert_close(ascent(algorithm, unroll), expected)


def test_a_lane_without_rows_is_left_out():
    """The environments of a worker that is late."""
    algorithm, collector = collected("evolution_strategies", "continuous")
    unroll = collector.buffer.draw(algorithm.plan, torch.Generator())
    others = unroll.map(lambda leaf: leaf[:, 1:].clone())
    unroll.valid[:, 0], unroll.policy_info.seed[:, 0], unroll.reward[:, 0] = 0.0, 0.0, torch.nan
    found = ascent(algorithm, unroll)
    assert found.any()
    assert_close(found, ascent(algorithm, others))


def test_rows_of_an_older_perturbation_do_not_count_for_the_newest():
    """A worker that was late and then in time brings two in one unroll."""
    algorithm, collector = collected("evolution_strategies", "continuous")
    unroll = collector.buffer.draw(algorithm.plan, torch.Generator())
    unroll.reward[:6, 0] = 100.0
    without = unroll.map(torch.clone)
    without.valid[:5, 0] = 0.0
    unroll.policy_info.seed[:5, 0] = 7.0
    assert_close(ascent(algorithm, unroll), ascent(algorithm, without))


def test_nothing_is_learned_from_a_single_lane_with_rows_and_a_warning_says_so(caplog):
    algorithm, collector = collected("evolution_strategies", "continuous")
    unroll = collector.buffer.draw(algorithm.plan, torch.Generator())
    unroll.valid[:, 1:] = 0.0
    before = [parameter.clone() for parameter in algorithm.policy.parameters()]
    info = algorithm.update(Source(unroll))
    assert (info.gradient_steps, info.rows_trained, info.metrics) == (0, 0, {})
    assert (info.policy_version, algorithm.num_gradient_steps) == (1, 0)
    assert all(torch.equal(old, new) for old, new in zip(before, algorithm.policy.parameters(), strict=True))
    assert "only 1 of 3 environments have rows" in caplog.text
    assert "distributed.min_finished_workers" in caplog.text


def test_a_run_of_one_environment_is_refused_before_it_begins(tmp_path):
    with pytest.raises(ConfigError, match="one in each environment; give at least 2"):
        palaestra.train("evolution_strategies", "CartPole-v1", env__num_envs=1, run__directory=str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_an_optimizer_of_a_part_is_refused():
    """One steps all parameters; the other was made and never used."""
    with environment("continuous") as env:
        with pytest.raises(ConfigError, match=r"leave out algorithm.optimizers.mlp, or give algorithm.optimizers.pol"):
            make("evolution_strategies", env, optimizers={"mlp": "sgd", "policy": "adam"})
        assert make("evolution_strategies", env, optimizers={"policy": "sgd"})


@pytest.mark.slow
def test_environments_that_act_one_after_another_are_refused():
    config = dataclasses.replace(KINDS["continuous"], vectorization="process", num_workers=2, num_ready=1)
    with environment(config, 2) as env:
        collector = collector_for(env, make("evolution_strategies", env))
        with pytest.raises(ConfigError, match=r"1 lane\(s\) were to act after 2.*leave out env.num_ready"):
            collector.unroll(12)


def test_an_episode_that_broke_off_is_not_joined_to_the_one_after_the_gap():
    """What a restarted environment or a dropped fragment leaves behind: rows that are not valid, and then a FIRST."""
    spec = {"observation_spec": TensorSpec(()), "action_spec": DiscreteSpec(num=2)}
    buffer = ReplayBuffer(None, 2, **spec, info_spec={"seed": TensorSpec((), torch.float64)})

    def arrived(kind: int, reward: float) -> TimeStep:
        ones = torch.ones(2)
        return TimeStep(torch.full((2,), kind, dtype=torch.int32), reward * ones, ones, ones)

    buffer.open(arrived(FIRST, 0.0))
    steps = [(MID, 1.0), (MID, 2.0), (FIRST, 0.0), (FIRST, 0.0), (MID, 10.0), (LAST, 20.0), (FIRST, 0.0), (MID, 100.0)]
    for kind, reward in steps:
        buffer.append(torch.zeros(2, dtype=torch.int64), arrived(kind, reward))
    unroll = buffer.draw(OnPolicy(unroll_length=8), torch.Generator())
    assert unroll.valid[:, 0].tolist() == [1, 1, 0, 0, 1, 1, 0, 1]
    assert _tried(unroll)[1].tolist() == [30.0, 30.0]


@pytest.mark.parametrize("resume", ["exact", "statistical"])
def test_a_run_that_was_cut_inside_an_unroll_goes_on_with_the_same_perturbations(resume, monkeypatch):
    """Rows of before the cut are described before anything has acted, where their episodes do not go on."""

    def begun():
        env = environment("discrete", num_envs=4, seed=3)
        algorithm: Any = make("evolution_strategies", env, 3)
        return env, algorithm, collector_for(env, algorithm)

    _, algorithm, collector = begun()
    collector.stepped = lambda *_: collector.pause() if len(collector.buffer) >= 20 else None
    collector.unroll(20)
    assert collector.unfinished
    env, after, other = begun()
    other.buffer.load_state_tensors(collector.buffer.state_tensors())
    load = env.load_state_dict
    monkeypatch.setattr(env, "load_state_dict", lambda state: (load(state), setattr(env, "resume", resume)))
    other.load_state(collector.state())
    other.unroll(20)
    seeds = algorithm.policy.behaviour(torch.zeros(1, 4, 4), torch.zeros(1, 4)).seed[0]  # of the run that was cut
    rows = other.buffer.draw(after.plan, torch.Generator())
    assert (rows.policy_info.seed == seeds)[rows.valid.bool()].all()


def test_episodes_that_earlier_perturbations_began_are_not_kept():
    env = environment("discrete", num_envs=4, seed=3)
    with pytest.raises(ConfigError, match=r"leave it out, or ask for whole episodes \(episodes_per_iteration\)"):
        palaestra.Collector.of(env, make("evolution_strategies", env, 3), complete_episodes_only=True)
