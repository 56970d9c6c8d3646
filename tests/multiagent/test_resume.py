"""Checkpoints of runs with many agents: what is resumed goes on bit for bit."""

import numpy as np
import pytest
import torch

from palaestra import PPO, NetworkConfig, PPOConfig, RunSeeds
from palaestra.core import EnvError, restart, transition
from palaestra.multiagent import MultiAgentCollector, MultiAgentEnvs, MultiAgentStep, assign_policies
from palaestra.multiagent.acting import MappedPolicy
from palaestra.policies import Phase, RandomPolicy, RulePolicy
from palaestra.testing.algorithms import different
from palaestra.training import CheckpointStore, SimplePolicyManager, Trainer, TrainerConfig
from tests.multiagent.parts import RandomWorld, Shop
from tests.multiagent.test_collector import TWO_KINDS, collector_of


def trainer_of(make, directory, mapping, algorithm, total):
    collector, actors = collector_of(make, mapping=mapping, algorithm=algorithm, seed=5)
    config = TrainerConfig(total_env_steps=total, eval_every_steps=0, checkpoint_every_steps=0, log_every_steps=0)
    return Trainer(collector, SimplePolicyManager(actors), config, checkpoints=CheckpointStore(directory))


def end_state(trainer):
    state = trainer.state()
    del state["trainer"]["seconds"]
    return flat(state)


def flat(nest, path=""):
    if isinstance(nest, dict):
        return {k: v for key, value in nest.items() for k, v in flat(value, f"{path}/{key}").items()}
    if isinstance(nest, list | tuple):
        return {k: v for number, value in enumerate(nest) for k, v in flat(value, f"{path}/{number}").items()}
    return {path: torch.as_tensor(nest) if not isinstance(nest, str | type(None)) else nest}


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
@pytest.mark.parametrize(("make", "mapping"), [(RandomWorld, TWO_KINDS), (lambda: Shop(delay=4), {"*": "both"})])
def test_a_resumed_run_equals_the_uninterrupted_one(make, mapping, algorithm, tmp_path):
    """F25, MARO-15: environments, waiting rows, memories and episodes go on where they were."""
    whole, first, second = (trainer_of(make, tmp_path / part, mapping, algorithm, 330) for part in "abc")
    whole.run()
    while first.collector.env_steps < 120:
        first.train_iter()
    first.save()
    second.load_state(CheckpointStore(tmp_path / "b").load_newest()[1])
    assert second.collector.env_steps >= 120
    second.run()
    ours, theirs = end_state(whole), end_state(second)
    # seconds, and the names that files of a checkpoint are shared by
    skip = ("/trainer/", "/collect/rows_left")
    ours, theirs = (
        {k: v for k, v in s.items() if not k.startswith(skip) and "segments" not in k} for s in (ours, theirs)
    )
    assert ours.keys() == theirs.keys()
    wrong = [key for key, value in ours.items() if not equal(value, theirs[key])]
    assert not wrong


def equal(one, other):
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_an_unroll_that_was_interrupted_goes_on_bit_for_bit(tmp_path):
    """F22, F25: a signal in the middle of an unroll."""

    def trainer(name):
        return trainer_of(lambda: Shop(delay=3), tmp_path / name, {"*": "both"}, "ppo", 300)

    whole, first, second = trainer("whole"), trainer("first"), trainer("second")
    outcomes = iter(range(100))
    step = first.collector.envs.step

    def stepped(actions):
        if next(outcomes) == 4:
            first.collector.pause()
        return step(actions)

    first.collector.envs.step = stepped
    first.train_iter()
    assert first.collector.unfinished
    store = CheckpointStore(tmp_path / "interrupted")
    store.save(1, first.state())
    second.load_state(store.load_newest()[1])
    assert second.collector.unfinished
    results = []
    for one in (whole, second):
        for _ in range(3):
            one.train_iter()
        results.append({k: v for k, v in one.algorithms["both"].state_tensors().items() if isinstance(v, torch.Tensor)})
    assert not different(*results)


def test_a_reward_that_came_before_its_row_is_resumed():
    """F25: it belongs to the action of the next row, wherever a checkpoint is between."""
    spec = Shop().agents["painter"]
    rule = RulePolicy(lambda seen: seen[:, 0].long(), spec.observation, spec.action)
    policy_specs, seen = assign_policies({"painter": spec}, {"*": "all"}), np.zeros(2, np.float32)
    early, mapped = (MappedPolicy(rule, policy_specs["all"], 1, delayed=True) for _ in range(2))
    early.take(0, MultiAgentStep({"painter": restart(seen)}))
    early.act(Phase.COLLECT, actions=[{}])
    early.take(0, MultiAgentStep({}, late_rewards={"painter": [5.0]}))
    mapped.load_state_dict(early.state_dict(), ())
    for one in (early, mapped):
        (row,) = one.take(0, MultiAgentStep({"painter": transition(seen, 0.0)}))
        assert row.reward == 5.0 and not row.waiting


def test_what_a_policy_draws_that_does_not_learn_is_resumed():
    """F25: what it earned in an episode that a checkpoint cut, and in those after it."""
    spec, mapping = Shop().agents["painter"], {"buyer": "learns", "painter": "chance"}
    whole, second = (
        collector_of(Shop, num_envs=1, mapping=mapping, chance=RandomPolicy(spec.observation, spec.action))[0]
        for _ in range(2)
    )
    whole.unroll(5)
    second.buffers["learns"].load_state_tensors(whole.buffers["learns"].state_tensors())
    second.load_state(whole.state())
    earned = []
    for one in (whole, second):
        one.unroll(50)
        earned.append([episode.info["painter/return"] for episode in one.drain()])
    assert len(earned[0]) > 3 and earned[0] == earned[1]


def test_unrolls_of_less_than_a_step_go_on_where_they_were():
    """F25: who replays learns after each of them, by the rows of the one before that had any."""
    (whole, _), (second, _) = (
        collector_of(lambda: Shop(delay=0), num_envs=1, mapping={"*": "both"}, algorithm="dqn") for _ in range(2)
    )
    for _ in range(9):
        whole.unroll(0.25)
    second.buffers["both"].load_state_tensors(whole.buffers["both"].state_tensors())
    second.load_state(whole.state())
    went_on, resumed = ([(info.rows, info.rows_of) for info in map(one.unroll, [0.25] * 8)] for one in (whole, second))
    assert went_on == resumed and went_on[0] == (0, {"both": 1})


def test_a_environment_that_does_not_replay_is_named():
    """F25: randomness that does not come from the seed."""

    class Unseeded(RandomWorld):
        def begin_episode(self, seed):
            self.begun = getattr(self, "begun", 0) + 1
            return super().begin_episode(seed + self.begun)

    envs = MultiAgentEnvs([Unseeded], lane_seeds=[1])
    envs.reset()
    with pytest.raises(EnvError, match=r"environment 0 .* does not replay"):
        envs.load_state_dict(envs.state_dict())


def remembering(unroll_length=15):
    """A trainer of agents that act at different times, are paid late, and remember."""
    envs = MultiAgentEnvs([lambda: Shop(delay=4)] * 2, lane_seeds=[1, 2])
    policy_specs = assign_policies(envs.agents, {"*": "both"})
    network = NetworkConfig(hidden_sizes=(8,), recurrent="gru", recurrent_size=6)
    config = PPOConfig(network=network, unroll_length=unroll_length, mini_batch_length=4, mini_batch_size=16)
    ppo = PPO(policy_specs["both"].observation_spec, policy_specs["both"].action_spec, config, RunSeeds(1))
    collector = MultiAgentCollector(envs, policy_specs, {"both": ppo})
    return Trainer(collector, SimplePolicyManager({"both": ppo}), TrainerConfig(total_env_steps=1000))


def test_memories_are_resumed_bit_for_bit(tmp_path):
    whole, first, second = remembering(), remembering(), remembering()
    for _ in range(4):
        whole.train_iter()
    for _ in range(2):
        first.train_iter()
    store = CheckpointStore(tmp_path)
    store.save(1, first.state())
    second.load_state(store.load_newest()[1])
    for _ in range(2):
        second.train_iter()
    ours, theirs = (one.algorithms["both"].state_tensors() for one in (whole, second))
    assert not [key for key, value in flat(ours).items() if not equal(value, flat(theirs)[key])]


def test_each_agent_has_a_memory_of_its_own():
    """What it remembers after one row is what it acts by on its next one; nothing where an episode begins."""
    trainer = remembering()
    trainer.collector.unroll(30)
    (buffer,), policy = trainer.collector.buffers.values(), trainer.algorithms["both"].policy
    rows = buffer[buffer.in_time_order(0)]
    before = buffer.recent("state", len(rows) - 1)[:, 0]
    begins = rows.step_type[:-1] == 0
    assert begins.any() and not before.values()[0][begins].any()
    within = [row for row in range(len(rows) - 2) if set(rows.step_type[row : row + 2].tolist()) == {1}]
    assert len(within) > 2
    for row in within:
        _, after = policy.features(rows.observation[row][None], before[row][None])
        assert torch.allclose(after.values()[0][0], before.values()[0][row + 1], atol=1e-6)
