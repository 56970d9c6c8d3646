"""Tests of SAC, TD3 and DDPG with a memory: replayed sequences, burn-in, and one memory for actor and critics."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import palaestra
from palaestra import NetworkConfig
from palaestra.algorithms import SACConfig
from palaestra.algorithms.config import replay_plan
from palaestra.core import ConfigError, StepType, shards
from tests.algorithms.parts import ATTENTION, collected, environment, first_minibatch, make

NETWORK = NetworkConfig(hidden_sizes=(8,), recurrent="gru", recurrent_size=6)
NAMES = ("sac", "td3", "ddpg")
FAST = [("td3", None), ("sac", "local")]
every = pytest.mark.parametrize("name", NAMES)


def remembering(name: str, **changes: Any) -> tuple[Any, Any]:
    return collected(name, "continuous", **{"network": NETWORK, "mini_batch_length": 5, **changes})


def through_time(network: Any, batch: Any, lane: int) -> Tensor:
    """[L+1, H] what a memory makes of one sequence, row by row, from the state that was stored."""
    state, rows = batch.state[0, lane : lane + 1], []
    for row, kind in enumerate(batch.step_type[:, lane].tolist()):
        if kind == StepType.FIRST:
            state = network.initial_state(1)
        features, state = network.remember(batch.observation[row, lane : lane + 1], state)
        rows.append(features)
    return torch.cat(rows)


@pytest.mark.parametrize("network", [NETWORK, ATTENTION], ids=["gru", "attention"])
@every
def test_the_critics_loss_is_the_one_of_a_loop_over_rows(name, network):
    """Beyond the list 5: stored state, burn-in, and what comes next through the target memory."""
    algorithm, collector = remembering(name, gamma=0.9, network=network)
    for part in ("target_memory", "target_critic"):
        for parameter in algorithm.model.component[part].parameters():
            parameter.data.mul_(1.3)
    batch: Any = first_minibatch(algorithm, collector.buffer)
    policy, target = algorithm.policy, algorithm.remembered._target
    errors = []
    for lane in range(batch.action.shape[1]):
        online, behind = through_time(policy.network, batch, lane), through_time(target, batch, lane)
        for t in range(2, 7):  # burn_in is 2, and 5 rows follow
            if batch.step_type[t, lane] == StepType.LAST:
                continue
            q = algorithm.critic(online[t], batch.action[t, lane]).reshape(-1)
            if name == "sac":
                drawn = policy.distribution_of(policy.head(online[t + 1])).at(batch.next_noise[t, lane])
                value = algorithm.target_critic(behind[t + 1], drawn[0]).min() - algorithm.temperature() * drawn[1]
            else:
                action = algorithm.target_actor(behind[t + 1]).tanh()
                action = (action + batch.noise[t, lane]).clamp(-1, 1) if name == "td3" else action
                value = algorithm.target_critic(behind[t + 1], action).min()
            ended = batch.bootstrap[t, lane] == 0
            goal = batch.reward[t, lane] + (0.0 if ended else 0.9) * value
            errors.append((q - goal.detach()).square().sum())
    expected = torch.stack(errors).mean() * (0.5 if name == "sac" else 1.0)
    assert len(errors) > 5
    assert_close(algorithm.losses(batch).terms["critic"], expected, rtol=1e-4, atol=1e-5)


@every
def test_the_critics_alone_train_the_memory(name):
    algorithm, collector = remembering(name, policy_period=1)
    batch = first_minibatch(algorithm, collector.buffer)
    terms = algorithm.losses(batch).terms
    assert algorithm.trains["critic"] == ("critic", "memory")
    memory = list(algorithm.model.component["memory"].parameters())
    assert all(g is None for g in torch.autograd.grad(terms["actor"], memory, allow_unused=True, retain_graph=True))
    assert all(float(g.abs().max()) > 0 for g in torch.autograd.grad(terms["critic"], memory))


@every
def test_shards_of_sequences_give_the_gradient_of_the_whole(name):
    """As gradient workers compute it."""
    algorithm, collector = remembering(name, mini_batch_size=40, policy_period=1)
    batch = first_minibatch(algorithm, collector.buffer)
    whole = algorithm.gradients(batch)
    pieces = [algorithm.gradients(piece) for piece in shards(batch, algorithm.plan, 3)]
    total = sum(int(piece.num_valid) for piece in pieces)
    assert total == int(whole.num_valid)
    for key, gradient in whole.values.items():
        assert_close(sum(p.values[key] * (int(p.num_valid) / total) for p in pieces), gradient, rtol=1e-3, atol=1e-5)


@every
def test_the_target_memory_follows(name):
    algorithm, collector = remembering(name, tau=0.5, policy_period=1, gradient_steps=1)
    before = [p.clone() for p in algorithm.model.component["target_memory"].parameters()]
    algorithm.update(collector.buffer)
    online, after = (list(algorithm.model.component[part].parameters()) for part in ("memory", "target_memory"))
    for old, new, now in zip(before, after, online, strict=True):
        assert_close(new, 0.5 * old + 0.5 * now)


@every
@pytest.mark.parametrize("changes", [{"n_step": 3}, {"mini_batch_length": 1}])
def test_settings_that_do_not_go_together_are_named(name, changes):
    with environment("continuous") as env, pytest.raises(ConfigError, match="a memory was asked for with n_step="):
        make(name, env, network=NETWORK, **changes)


@pytest.mark.parametrize(
    ("name", "runtime"),
    [
        pytest.param(name, runtime, marks=[] if (name, runtime) in FAST else pytest.mark.slow)
        for name in NAMES
        for runtime in (None, "local", "process")
    ],
)
def test_a_run_with_a_memory_is_resumed_as_if_it_had_never_stopped(name, runtime, tmp_path):
    """Beyond the list 5: here and on a runtime's workers; and the policy that was saved answers alike."""
    options = {
        "algorithm__network__recurrent": "lstm",
        "algorithm__network__recurrent_size": 6,
        "algorithm__network__hidden_sizes": (8,),
        "algorithm__mini_batch_length": 4,
        "algorithm__mini_batch_size": 16,
        "algorithm__learning_starts": 40,
        "algorithm__unroll_length": 8,
        "env__kwargs": {"continuous": True},
        "env__num_envs": 2,
        "trainer__total_env_steps": 160,
        "trainer__checkpoint_every_steps": 64,
        **({} if runtime is None else {"distributed__runtime": runtime}),
    }
    recall = "palaestra.envs.tiny:Recall"
    whole, again = (
        palaestra.train(name, recall, **options, run__directory=str(tmp_path), run__name=each)
        for each in ("one", "two")
    )
    for newer in sorted(Path(again.directory, "checkpoints").glob("step_*"))[1:]:
        for file in newer.iterdir():
            file.unlink()
        newer.rmdir()
    resumed = palaestra.resume(again.directory)
    palaestra.save_policy(whole.policy, tmp_path / "saved")
    saved = palaestra.load_policy(tmp_path / "saved")
    assert saved.state_spec
    for ours, theirs, kept in zip(
        whole.policy.parameters(), resumed.policy.parameters(), saved.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)
        assert torch.equal(ours, kept)


@pytest.mark.parametrize(("rows", "length", "drawn"), [(256, 20, (12, 20)), (8, 20, (1, 20)), (8, 1, (8, 2))])
def test_a_memory_draws_sequences_of_as_many_rows_and_at_least_one(rows, length, drawn):
    plan = replay_plan(SACConfig(network=NETWORK, mini_batch_size=rows, mini_batch_length=length))
    assert (plan.mini_batch_size, plan.mini_batch_length) == drawn


@every
def test_a_sequence_without_a_row_that_counts_adds_nothing(name):
    """All rows of it were lost; a gradient worker may have no other."""
    algorithm, collector = remembering(name, mini_batch_size=20, policy_period=1)
    batch = first_minibatch(algorithm, collector.buffer)
    lost = batch.replace(valid=batch.valid * torch.arange(batch.valid.shape[1]).clamp(max=1))
    pieces = [algorithm.gradients(part) for part in shards(lost, algorithm.plan, batch.valid.shape[1])]
    assert float(pieces[0].num_valid) == 0
    assert all(value.isfinite().all() for value in pieces[0].metrics.values())
    algorithm.apply(pieces)


@pytest.mark.parametrize("name", ["r2d2", *NAMES])
def test_the_normaliser_learns_from_every_row_that_is_learned_from(name):
    """Also of later episodes in a sequence: where all are shorter than the burn-in, it would see nothing."""
    kind = "recurrent" if name == "r2d2" else "continuous"
    changes = {"network": NETWORK, "mini_batch_length": 8, "normalize_observation": True}
    algorithm, collector = collected(name, kind, **changes)
    collector.unroll(24)
    info = algorithm.update(collector.buffer)
    assert int(algorithm.policy.normalizer.count) == info.rows_trained > 0
