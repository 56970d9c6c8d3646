"""`ExperienceMemory`: sets of transitions go in, are replaced, chosen and learned from."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch

from palaestra import DQN, DQNConfig, NetworkConfig, RunSeeds
from palaestra.algorithms import DiscreteCQL
from palaestra.buffers import (
    ExperienceMemory,
    MixtureSource,
    PrioritizedSampler,
    ReplayBuffer,
    Sampler,
    UniformSampler,
    WholeSampler,
)
from palaestra.buffers.streams import WritePositions
from palaestra.core import ConfigError, DiscreteSpec, ExperienceSet, Replay, ShapeError, TensorSpec, TimeStep
from palaestra.rollout import OfflineData
from palaestra.training import Trainer, TrainerConfig

SPECS = {"observation_spec": TensorSpec((2,)), "action_spec": DiscreteSpec(num=3)}


def experiences(first: int, count: int, **info) -> ExperienceSet:
    """Transition i has the reward i, and leads from (i, 0) to (i, 1)."""
    number = np.arange(first, first + count, dtype=float)
    states = np.stack([number, np.zeros(count)], 1)
    return ExperienceSet(states, number.astype(int) % 3, number, states + np.array([0.0, 1.0]), info)


def held(memory: ExperienceMemory) -> list[int]:
    return sorted(int(reward) for reward in memory.sample(0, torch.Generator())[0].rewards)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_sets_go_in_and_come_out_as_they_were():
    """MARO-40, MARO-42: states, actions, rewards, next states and info, of whole sets, parts of them and empty ones."""
    memory = ExperienceMemory(8, **SPECS, info_spec={"loss": TensorSpec(())})
    assert memory.put(ExperienceSet([], [], [], [])).tolist() == []
    given = experiences(0, 6, loss=np.arange(6) / 10, terminated=np.arange(6) == 5)
    collected = ExperienceSet([], [], [], [])
    collected.extend(given[0:4])
    collected.extend(given[4])
    collected.extend(ExperienceSet([], [], [], []))
    collected.extend(given[5])
    memory.put(collected)
    assert len(memory) == 6
    found, _ = memory.sample(0, generator())
    assert type(found) is ExperienceSet
    order = np.argsort(found.rewards.numpy())
    for name in ("states", "actions", "rewards", "next_states"):
        assert np.allclose(found[name].numpy()[order], given[name])
    assert np.allclose(found.info.loss.numpy()[order], given.info.loss)
    assert found.info.terminated.numpy()[order].tolist() == [False] * 5 + [True]
    drawn = memory.draw(Replay(unroll_length=1, mini_batch_size=64), generator())
    assert (drawn.observation[:, 0] == drawn.reward[1]).all()
    assert (drawn.next_observation[:, 1] == 1).all()
    assert torch.equal(drawn.discount[1] == 0, drawn.reward[1] == 5)
    memory.clear()
    assert len(memory) == 0
    memory.put(experiences(20, 2, loss=np.zeros(2)))
    assert held(memory) == [20, 21]


@pytest.mark.parametrize("overwrite_type", ["rolling", "random"])
def test_a_full_memory_replaces_the_oldest_or_any(overwrite_type):
    """MARO-42: capacity; `rolling` keeps the newest, `random` lets every older one survive with the same chance."""
    survived, rounds = Counter[int](), 100
    for seed in range(rounds):
        memory = ExperienceMemory(10, overwrite_type=overwrite_type, seed=seed, **SPECS)
        memory.put(experiences(0, 7))
        memory.put(experiences(7, 3))
        memory.put(experiences(10, 4))
        kept = held(memory)
        assert len(kept) == len(set(kept)) == len(memory) == 10
        assert set(kept) > {10, 11, 12, 13}, "what was just put is there"
        survived.update(kept)
    if overwrite_type == "rolling":
        assert [survived[number] for number in range(14)] == [0] * 4 + [rounds] * 10
    else:
        assert all(0.4 * rounds < survived[number] < 0.8 * rounds for number in range(10)), survived


@pytest.mark.parametrize("sampler", [UniformSampler(replace=False), WholeSampler()])
def test_draws_without_replacement(sampler):
    """MARO-43: the transitions of a draw are different ones, all equally likely; too many are refused."""
    memory = ExperienceMemory(20, sampler=sampler, **SPECS)
    memory.put(experiences(0, 12))
    source, seen = generator(), Counter[int]()
    for _ in range(1000):
        drawn = [int(reward) for reward in memory.sample(4, source)[0].rewards]
        assert len(set(drawn)) == 4 or isinstance(sampler, WholeSampler)
        seen.update(drawn)
    assert set(seen) == set(range(12))
    assert max(seen.values()) < 1.5 * min(seen.values())
    if isinstance(sampler, UniformSampler):
        with pytest.raises(ShapeError, match="13 different rows were asked for, and 12 can be drawn"):
            memory.sample(13, source)


def test_a_replay_buffer_draws_without_replacement_too():
    """MARO-43."""
    buffer = ReplayBuffer(40, 2, sampler=UniformSampler(replace=False), **SPECS)
    steps = [
        TimeStep(torch.full((2,), min(tick, 1), dtype=torch.int32), torch.ones(2), torch.ones(2), torch.zeros(2, 2))
        for tick in range(16)
    ]
    buffer.open(steps[0])
    for step in steps[1:]:
        buffer.append(torch.zeros(2, dtype=torch.int64), step)
    index = buffer.draw(Replay(unroll_length=1, mini_batch_size=30), generator()).index
    assert len(set(index.tolist())) == 30


class Watching(Sampler):
    """A sampler of MARO's make: it is told what is put, and chooses what is most surprising."""

    def __init__(self) -> None:
        self.surprise: dict[int, float] = {}

    def on_put(self, experiences, index):
        self.surprise |= dict(zip(index.tolist(), np.asarray(experiences.info["loss"]).tolist(), strict=True))

    def starts(self, buffer, count, length, generator):
        rows = buffer.starts(length)
        return np.array(sorted(rows.tolist(), key=self.surprise.__getitem__, reverse=True)[:count])


def test_a_sampler_of_ones_own_is_told_what_is_put():
    """MARO-43: `on_put` with the set and its indexes, also where older transitions are replaced."""
    memory = ExperienceMemory(5, sampler=Watching(), overwrite_type="random", **SPECS)
    for first in (0, 5, 8):
        count = 5 if first == 0 else 3
        memory.put(experiences(first, count, loss=np.arange(first, first + count) * 1.0))
    assert memory.sample(2, generator())[0].rewards.tolist() == [10, 9]
    assert memory.draw(Replay(unroll_length=1, mini_batch_size=1), generator()).reward[1].tolist() == [10]


@pytest.mark.parametrize("kind", ["uniform", "prioritized"])
def test_a_shipped_dqn_learns_from_sets(kind):
    """MARO-40, MARO-42: a bandit of three arms, whose transitions come as sets; the best arm is learned."""
    config = DQNConfig(network=NetworkConfig(hidden_sizes=(16,)), learning_rate=1e-2, mini_batch_size=32)
    dqn = DQN(*SPECS.values(), config, RunSeeds(0))
    memory = ExperienceMemory(128, sampler=PrioritizedSampler() if kind == "prioritized" else None, **SPECS)
    rng = np.random.default_rng(0)
    for _ in range(120):
        states, arms = rng.normal(size=(8, 2)), rng.integers(0, 3, 8)
        best = (states[:, 0] > 0).astype(int) * 2  # arm 0 or 2
        memory.put(ExperienceSet(states, arms, (arms == best) * 1.0, states, {"terminated": np.ones(8, bool)}))
        dqn.update(memory)
    assert dqn.policy_version == 120
    states = torch.tensor([[2.0, 0.3], [-2.0, 0.1], [1.0, -1.0]])
    assert dqn.policy(states, deterministic=True).tolist() == [2, 0, 2]


def test_a_memory_is_saved_and_goes_on_as_it_was():
    """MARO-42: what is replaced and drawn next is the same, bit by bit."""

    def draws(memory):
        found = []
        for first in (50, 53):
            memory.put(experiences(first, 3))
            found.append(memory.sample(6, source)[0].rewards.tolist())
        return found

    def made():
        return ExperienceMemory(9, overwrite_type="random", sampler=PrioritizedSampler(), **SPECS)

    memory, source = made(), generator(1)
    memory.put(experiences(0, 9))
    memory.write_back(memory.draw(Replay(unroll_length=1, mini_batch_size=4), source).index, torch.arange(4.0))
    other, place = made(), source.get_state()
    other.load_state_tensors({name: _copied(value) for name, value in memory.state_tensors().items()})
    before = draws(memory)
    source.set_state(place)
    assert draws(other) == before


def _copied(value):
    return value.clone() if isinstance(value, torch.Tensor) else value.copy() if hasattr(value, "copy") else value


@pytest.mark.parametrize("info", [None, [None] * 3, (), [{}] * 3])
def test_maro_40_a_set_may_have_no_info(info):
    """As MARO has it: `None`, or a list of them; it is put, indexed and extended as any other."""
    count = 0 if info == () else 3
    made = ExperienceSet(np.zeros((count, 2)), np.arange(count), np.ones(count), np.zeros((count, 2)), info)
    memory = ExperienceMemory(10, **SPECS)
    memory.put(made)
    made.extend(made[0:2])
    assert (len(memory), len(made)) == (count, count + min(count, 2))


def test_maro_40_a_memory_feeds_a_trainer_and_a_mixture():
    memory, online = ExperienceMemory(100, **SPECS), ReplayBuffer(100, 2, **SPECS)
    memory.put(experiences(0, 40))
    online.open(TimeStep(torch.zeros(2, dtype=torch.int32), torch.zeros(2), torch.ones(2), torch.full((2, 2), -1.0)))
    for _ in range(20):
        step = TimeStep(
            torch.ones(2, dtype=torch.int32), torch.full((2,), -1.0), torch.ones(2), torch.full((2, 2), -1.0)
        )
        online.append(torch.zeros(2, dtype=torch.int64), step)
    drawn = MixtureSource([(memory, 0.75), (online, 0.25)]).draw(
        Replay(unroll_length=1, mini_batch_size=32), generator()
    )
    assert int((drawn.reward[1] >= 0).sum()) == 24
    learner = DiscreteCQL(SPECS["observation_spec"], SPECS["action_spec"])
    Trainer(OfflineData(memory), learner, TrainerConfig(total_env_steps=5, eval_every_steps=0)).run()
    assert learner.policy_version == 5
    with pytest.raises(ConfigError, match="a list was given; a ReplayBuffer or an ExperienceMemory is needed"):
        OfflineData([memory])


def test_what_does_not_fit_is_refused():
    """MARO-42: a set larger than the memory raises; nothing is taken of a set that is refused."""
    memory = ExperienceMemory(4, **SPECS, info_spec={"loss": TensorSpec(())})
    with pytest.raises(ShapeError, match="5 transitions were put into a memory with a capacity of 4"):
        memory.put(experiences(0, 5))
    with pytest.raises(ShapeError, match=r"info lacks \['loss'\]"):
        memory.put(experiences(0, 2))
    wide = experiences(0, 2, loss=np.zeros(2))
    wide.states = np.zeros((2, 3))
    with pytest.raises(ShapeError, match=r"states have the shape \(2, 3\), but \(2, 2\) is needed"):
        memory.put(wide)
    halves = experiences(0, 2, loss=np.zeros(2))
    halves.actions = np.array([0.5, 1.0])
    with pytest.raises(ShapeError, match="actions are float64, but int64 is needed, which cannot hold their values"):
        memory.put(halves)
    with pytest.raises(ShapeError, match="holds no transitions; put some"):
        memory.sample(0, generator())
    plan = Replay(unroll_length=1, n_step=3)
    for wrong in (plan, dataclasses.replace(plan, n_step=1, mini_batch_length=4)):
        with pytest.raises(ConfigError, match="holds single transitions, and this plan needs sequences"):
            memory.draw(wrong, generator())
    with pytest.raises(ConfigError, match="overwrite_type is 'lifo'"):
        ExperienceMemory(4, overwrite_type="lifo", **SPECS)
    with pytest.raises(TypeError, match="a buffer does not know colour"):
        ExperienceMemory(4, colour=1, **SPECS)
    buffer = ReplayBuffer(4, 1, **SPECS)
    with pytest.raises(ShapeError, match="transitions that stand alone go into an ExperienceMemory"):
        buffer.extend(experiences(0, 2))


def test_a_memory_that_does_not_fit_is_refused_before_it_is_allocated():
    """F21: it was a MemoryError, for each transition is a lane, and lanes were made before room was asked for."""
    with pytest.raises(ConfigError, match=r"the buffer needs .*main memory has .*options: a smaller capacity"):
        ExperienceMemory(10**13, **SPECS)
    with pytest.raises(ConfigError, match=r"positions of lanes alone 5.6e\+05 GB"):
        WritePositions(10**13, rows=1)


def test_a_reward_that_is_not_finite_is_refused():
    memory = ExperienceMemory(4, observation_spec=TensorSpec((1,)), action_spec=DiscreteSpec(num=2))
    sets = ExperienceSet(np.zeros((2, 1)), [0, 1], [1.0, np.nan], np.zeros((2, 1)))
    with pytest.raises(ShapeError, match="rewards have the value nan in row 1"):
        memory.put(sets)
    assert len(memory.buffer) == 0
