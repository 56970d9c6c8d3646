"""Tests of `palaestra.algorithms.decision_transformer` and its policy: against plain loops over episodes."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import palaestra
from palaestra import Batch, ReplayBuffer, RunSeeds
from palaestra.algorithms import DecisionTransformer, DecisionTransformerConfig, RewardConfig
from palaestra.buffers import MixtureSource
from palaestra.core import (
    BoundedSpec,
    ConfigError,
    DiscreteSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    Replay,
    ShapeError,
    StepType,
    TensorSpec,
    TimeStep,
)
from palaestra.nn import NetworkConfig
from palaestra.policies import Phase, load_policy, save_policy
from tests.algorithms.parts import ATTENTION, collected, environment
from tests.cli.parts import exit_code, output
from tests.experiments.data import SEQUENCES, SMALL, saved

FIRST, MID, LAST = (int(kind) for kind in StepType)
BOX = BoundedSpec((2,), minimum=-np.ones(2), maximum=np.ones(2))
STREAM = [
    *((FIRST, 0.0), (MID, 1.0), (MID, 2.0), (LAST, 3.0)),  # 6
    *((FIRST, 0.0), (MID, 4.0), (LAST, 5.0)),  # 9
    *((FIRST, 0.0), (MID, 50.0), (FIRST, 0.0)),  # breaks off, so that nobody knows
    *((MID, -1.0), (MID, -2.0), (MID, -3.0), (LAST, -4.0)),  # -10
    *((FIRST, 0.0), (MID, 60.0), (MID, 60.0)),  # still runs
]
TIME = [0, 1, 2, 3, 0, 1, 2, 0, 1, 0, 1, 2, 3, 4, 0, 1, 2]
TO_GO = [6, 5, 3, 0, 9, 5, 0, None, None, -10, -9, -7, -4, 0, None, None, None]


def told(kind, reward, observation=None):
    seen = torch.zeros(1, 3) if observation is None else observation
    return TimeStep(torch.tensor([kind], dtype=torch.int32), torch.tensor([reward]), torch.ones(1), seen)


def stream(action_spec, rows=STREAM):
    generator = torch.Generator().manual_seed(0)
    buffer = ReplayBuffer(40, 1, observation_spec=TensorSpec((3,)), action_spec=action_spec)
    for number, (kind, reward) in enumerate(rows):
        step = told(kind, reward, torch.randn(1, 3, generator=generator))
        discrete = isinstance(action_spec, DiscreteSpec)
        action = torch.randint(0, 3, (1,), generator=generator) if discrete else torch.rand(1, 2, generator=generator)
        if number:
            buffer.append(action, step)
        else:
            buffer.open(step)
    return buffer


def made(action_spec=BOX, **settings):
    settings = {"network": ATTENTION, "mini_batch_sequences": 200, "mini_batch_length": 5, **settings}
    return DecisionTransformer(TensorSpec((3,)), action_spec, DecisionTransformerConfig(**settings), RunSeeds(1))


def prepared(algorithm, buffer):
    drawn = buffer.draw(algorithm.plan, torch.Generator().manual_seed(0))
    return algorithm.preprocess(drawn, buffer)


def test_returns_to_go_are_those_of_the_rest_of_the_recorded_episode():
    buffer = stream(BOX)
    rows = buffer.in_time_order(0)
    found = [None if math.isnan(value) else value for value in buffer.returns_to_go(rows).tolist()]
    assert found == TO_GO
    buffer.append(torch.zeros(1, 2), told(LAST, 7.0))
    assert buffer.returns_to_go(rows[-3:]).tolist() == [127.0, 67.0, 7.0]  # rows that came are seen


def test_returns_to_go_of_rows_that_a_full_lane_still_holds():
    buffer = ReplayBuffer(4, 1, observation_spec=TensorSpec((3,)), action_spec=BOX)
    for number, kind in enumerate([FIRST, MID, LAST, FIRST, MID, MID, LAST]):
        if number:
            buffer.append(torch.zeros(1, 2), told(kind, float(number)))
        else:
            buffer.open(told(kind, 0.0))
    assert buffer.returns_to_go(buffer.in_time_order(0)).tolist() == [0.0, 15.0, 11.0, 6.0, 0.0]


@pytest.mark.parametrize("action_spec", [BOX, DiscreteSpec(num=3)])
def test_the_loss_is_the_likelihood_of_every_action_after_what_was_seen_and_asked_for(action_spec):
    """Algorithm 1 with one token a step: a plain loop over sequences and steps, one row of the memory after another."""
    algorithm, buffer = made(action_spec), stream(action_spec)
    batch = prepared(algorithm, buffer)
    policy = algorithm.policy.eval()
    order = buffer.in_time_order(0).tolist()
    total = count = 0.0
    for index in batch.index.tolist():
        memory, before = policy.network.initial_state(1), torch.zeros(1, policy.encoder.action.out_size)
        begin = order.index(index)
        for place in range(begin, min(begin + 5, len(order) - 1)):
            if TO_GO[place] is None or STREAM[place][0] == LAST:
                break
            seen, action = (buffer.take(name, np.array([order[place]])) for name in ("observation", "action"))
            token = {"observation": seen, "return_to_go": torch.tensor([TO_GO[place] / 10.0]), "prev_action": before}
            token["time"] = torch.tensor([TIME[place] / 4])
            with torch.no_grad():
                (numbers, log_std), memory = policy.network(Batch.of(token), memory)
            if log_std is None:
                total -= float(numbers.log_softmax(-1)[0, action.item()])
                before = torch.nn.functional.one_hot(action, 3).float()
            else:
                z = (action - numbers) / log_std.detach().exp()
                total += float((0.5 * z**2 + log_std.detach() + 0.5 * math.log(2 * math.pi)).sum())
                before = action
            count += 1
    assert count == batch.valid.sum()
    assert_close(algorithm.losses(batch).terms["policy"].item(), total / count, rtol=1e-5, atol=1e-5)


def test_of_episodes_without_an_end_nothing_is_learned():
    batch = prepared(made(), stream(BOX))
    unknown = torch.tensor([TO_GO[place] is None for place in batch.index.tolist()])
    assert unknown.any()
    assert not batch.valid[:, unknown].any()
    assert batch.valid[0, ~unknown].all()
    with pytest.raises(ShapeError, match="no complete episode, so returns are unknown"):
        prepared(made(mini_batch_length=2), stream(BOX, STREAM[:3]))


@pytest.mark.parametrize(("given", "asked"), [(None, 9.0), (-4.5, -4.5)])
def test_it_acts_for_the_return_of_the_best_episode_or_for_what_is_said(given, asked):
    algorithm = made(target_return=given)
    for _ in range(2):
        algorithm.update(stream(BOX))
    assert algorithm.policy.target_return == asked
    assert (algorithm.policy.encoder.return_scale, algorithm.policy.encoder.time_scale) == (10, 4)
    other = made(target_return=given)
    other.load_state_tensors(algorithm.state_tensors())
    assert other.policy.target_return == asked


def test_acting_sees_what_learning_saw():
    """The same distribution step by step, with rewards counted down, as over the recorded sequence at once."""
    algorithm, buffer = made(mini_batch_length=3), stream(BOX)
    algorithm.update(buffer)
    policy = algorithm.policy.eval()
    policy.target_return = 6.0  # that of the first episode
    batch = prepared(algorithm, buffer)
    column = batch.index.tolist().index(buffer.in_time_order(0)[0])
    rows = buffer.in_time_order(0)[:3]
    state = policy.initial_state(1)
    for place, row in enumerate(rows):
        kind, reward = STREAM[place]
        seen = buffer.take("observation", rows[place : place + 1])
        step = policy.act(told(kind, reward, seen), state, deterministic=True)
        names = ("observation", "return_to_go", "time", "prev_action", "step_type")
        token = {name: batch[name][: place + 1, column : column + 1] for name in names}
        first = token.pop("step_type") == FIRST
        expected, _ = policy.following(Batch.of(token), policy.network.initial_state(1), first)
        assert_close(step.action[0], expected.mode()[-1, 0])
        assert step.state.prev_action.abs().max() <= 1  # as it was executed
        state = step.state.replace(prev_action=buffer.take("action", np.array([row])))


def test_the_return_that_is_left_falls_with_rewards_and_begins_anew_with_each_episode():
    policy = made().policy.eval()
    policy.target_return = 3.0
    kinds, rewards = [FIRST, MID, MID, LAST, FIRST, MID], [0.0, 1.0, 0.5, 4.0, 0.0, 2.0]
    state, seen = policy.initial_state(1), []
    for kind, reward in zip(kinds, rewards, strict=True):
        state = policy.act(told(kind, reward), state).state
        seen.append((policy.target_return - state.earned.item(), state.time.item()))
    assert seen == [(3.0, 1), (2.0, 2), (1.5, 3), (-2.5, 4), (3.0, 1), (1.0, 2)]


def test_a_plain_loop_hands_over_rewards():
    policy = made().policy.eval()
    assert policy([0.0, 0.0, 0.0]).shape == (2,)
    answer = policy(Batch(obs=np.zeros(3, np.float32)))
    with pytest.raises(ShapeError, match=r"policy\(Batch\(obs=..., rew=...\), state\)"):
        policy(Batch(obs=np.zeros(3, np.float32)), answer.state)
    again = policy(Batch(obs=np.zeros(3, np.float32), rew=2.5), answer.state)
    assert again.state.earned.tolist() == [2.5]


def test_it_acts_in_any_nest_of_actions_with_masks():
    """Forbidden actions raise in this environment; the coded action before has room for every part."""
    env = environment("composite")
    config = DecisionTransformerConfig(network=ATTENTION, mini_batch_length=2, mini_batch_sequences=8)
    algorithm = DecisionTransformer(env.observation_spec, env.action_spec, config)
    buffer = ReplayBuffer(
        200,
        3,
        observation_spec=env.observation_spec,
        action_spec=algorithm.policy.raw_action_spec,
    )
    palaestra.Collector(env, algorithm.policy, buffer).collect(n_step=60)
    losses = [algorithm.update(buffer).metrics["policy"] for _ in range(30)]
    assert all(map(math.isfinite, losses))
    assert algorithm.policy.state_spec["prev_action"].shape == (3 + 5 + 2 + 2,)


@pytest.mark.parametrize("settings", [{"network": NetworkConfig()}, {"rewards": RewardConfig(weights=(1.0,))}])
def test_what_cannot_be_is_refused(settings):
    with pytest.raises(ConfigError, match=r"needs a memory .* and rewards that are one number"):
        made(**settings)


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["gru", pytest.param("attention", marks=pytest.mark.slow)])
def test_a_saved_policy_asks_for_the_same_return_and_is_exported_with_its_reward(memory, tmp_path):
    config = ATTENTION if memory == "attention" else NetworkConfig(hidden_sizes=(8,), recurrent="gru", recurrent_size=6)
    algorithm = made(network=config)
    algorithm.update(stream(BOX))
    save_policy(algorithm.policy, tmp_path / "policy")
    assert load_policy(tmp_path / "policy").target_return == 9.0
    (exported,) = palaestra.export(tmp_path / "policy", tmp_path / "out", format="torch")
    names = [entry["name"] for entry in exported.manifest["inputs"]]
    assert names[-2:] == ["first", "reward"]
    assert "state.earned" in names


@pytest.mark.slow
def test_a_run_is_evaluated_for_another_return_from_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changes = {**SEQUENCES, "algorithm__network": ATTENTION, "algorithm__mini_batch_length": 4}
    data = saved(tmp_path / "data")
    done = palaestra.train("decision_transformer", "Pendulum-v1", offline__data=data, run__name="one", **changes)
    assert (done.result.status, done.result.env_steps) == ("done", 60)
    best = max(float(ReplayBuffer.load(data).take("reward", rows).sum()) for rows in ReplayBuffer.load(data).episodes())
    assert load_policy(done.directory / "policy").target_return == pytest.approx(best)
    assert exit_code("eval", "one", "--episodes", "2", "--target-return", "-20.5") == 0
    other = palaestra.train("td3_bc", "Pendulum-v1", offline__data=data, run__name="two", **SMALL)
    output(capsys)
    assert exit_code("eval", str(other.directory), "--target-return", "1") == 2
    assert "acts for no return in particular" in output(capsys)


# -- online


ONLINE = Replay(unroll_length=1, mini_batch_size=200, mini_batch_length=5, returns=True)


@pytest.mark.parametrize(("action_spec", "aim"), [(BOX, -2.0), (DiscreteSpec(num=3), 0.1 * math.log(3))])
def test_online_the_entropy_is_kept_at_its_aim(action_spec, aim):
    """Zheng et al. 2022, equations (5) to (7), beside the offline loss of the same batch."""
    algorithm = made(action_spec, initial_temperature=0.3)
    batch = prepared(algorithm, stream(action_spec))
    offline = algorithm.losses(batch)
    assert set(offline.terms) == {"policy"}
    algorithm.plan = ONLINE
    entropy = offline.metrics["entropy"]
    assert_close(algorithm.losses(batch).terms["policy"], offline.terms["policy"] - 0.3 * entropy)
    assert_close(algorithm.gradients(batch).values["temperature.log"], entropy.detach() - aim)
    assert made(action_spec, target_entropy=0.5).target_entropy == 0.5


def test_steps_of_its_own_count_once_their_episode_has_ended():
    """Ten of them say by their mean what to act for; units stay as they were at first."""
    algorithm, data = made(), stream(BOX)
    own = stream(BOX, [(FIRST, 0.0), *[(MID, 2.0)] * 9])
    algorithm.plan, source = ONLINE, MixtureSource([(own, 0.5), (data, 0.5)])
    algorithm.update(source)
    assert algorithm.policy.target_return == 9.0
    batch = prepared(algorithm, source)
    mine = batch.index < own.positions.ring_size
    assert not batch.valid[:, mine].any()
    own.append(torch.zeros(1, 2), told(LAST, 2.0))
    batch = prepared(algorithm, source)
    assert batch.valid[:, mine].all()
    assert_close(batch.return_to_go[0, mine], 2.0 - batch.index[mine] * 0.2)
    algorithm.update(source)
    assert algorithm.policy.target_return == 9.0  # may have been luck
    for number in range(9):
        own.append(torch.zeros(1, 2), told(FIRST, 0.0))
        own.append(torch.zeros(1, 2), told(LAST, 10.0 + number))
    algorithm.update(source)
    assert algorithm.policy.target_return == pytest.approx(14.6)  # 20 and 10 to 18
    for _ in range(9):
        own.append(torch.zeros(1, 2), told(FIRST, 0.0))
        own.append(torch.zeros(1, 2), told(LAST, 0.0))
    algorithm.update(source)
    assert algorithm.policy.target_return == pytest.approx(14.6)  # the best that it was
    assert (algorithm.policy.encoder.return_scale, algorithm.policy.encoder.time_scale) == (10, 4)


def test_an_episode_whose_beginning_is_overwritten_is_not_learned_from():
    """How many steps came before is known of no row in it."""
    own = stream(BOX, [(FIRST, 0.0), *[(MID, 2.0)] * 4, (LAST, 2.0), (FIRST, 0.0), *[(MID, 2.0)] * 4, (LAST, 2.0)])
    short = ReplayBuffer(8, 1, **own.options)
    short.update(own)
    algorithm = made()
    algorithm.plan = ONLINE
    batch = prepared(algorithm, short)
    begins = (short.take("step_type", short.reader.after(batch.index.numpy(), -1)) == LAST) & (batch.index > 0)
    assert not batch.valid[:, ~begins & (batch.time[0] < 1)].any()
    assert batch.valid[:, begins].any()


@pytest.mark.parametrize(
    ("settings", "asked"),
    [({}, 13.5), ({"exploration_return": 12.0}, 12.0), ({"target_return": -4.0, "exploration_return": -3.0}, -3.0)],
)
def test_it_explores_for_more_than_it_acts_for(settings, asked):
    """One and a half times as much, or what is said."""
    algorithm = made(**settings)
    policy = algorithm.policy.eval()

    def action(phase):
        policy.generator.manual_seed(1)
        return policy.act(told(FIRST, 0.0), policy.initial_state(1), phase=phase).action

    algorithm.update(stream(BOX))
    assert_close(action(Phase.COLLECT), action(Phase.EVAL), rtol=0, atol=0)  # offline
    algorithm.plan = ONLINE
    algorithm.update(stream(BOX))
    explored, acted = action(Phase.COLLECT), action(Phase.EVAL)
    policy.target_return = asked
    assert_close(action(Phase.EVAL), explored, rtol=0, atol=0)
    assert not torch.equal(acted, explored)


@pytest.mark.parametrize("older", [False, True])
def test_a_return_that_was_asked_for_is_none_that_was_reached(older):
    """Online, where a run goes on without `target_return`; of checkpoints of before nobody knows."""
    asked, algorithm = made(target_return=50.0), made()
    asked.plan = algorithm.plan = ONLINE
    for _ in range(2):
        asked.update(stream(BOX))
    assert (asked.policy.target_return, asked.known.best) == (50.0, 9.0)
    state = {name: value for name, value in asked.state_tensors().items() if not (older and "known" in name)}
    algorithm.load_state_tensors(state)
    algorithm.update(stream(BOX))
    assert algorithm.policy.target_return == (50.0 if older else 9.0)


def test_for_more_than_a_return_below_zero_it_does_not_ask():
    algorithm = made(target_return=-4.0)
    algorithm.plan = ONLINE
    algorithm.update(stream(BOX))
    assert (algorithm.policy.target_return, algorithm.policy.encoder.exploration_gain) == (-4.0, 0.0)


def test_where_nobody_tells_rewards_it_is_refused(tmp_path):
    from palaestra.deployment.served_policy import ServedPolicy

    with pytest.raises(ConfigError, match="has to be told the reward of each step"):
        ServedPolicy("policy", collected("decision_transformer", "recurrent")[0].policy, None)


def test_the_aim_of_choices_is_a_tenth_of_all_that_they_can_have_and_parts_add_up():
    """Nats: log 2 of a bit, log n of n choices; -1 of each number of a box."""
    parts = {"bits": MultiBinarySpec((3,)), "two": MultiDiscreteSpec(nvec=(4, 5)), "box": BOX}
    assert made(parts["bits"]).target_entropy == pytest.approx(0.1 * 3 * math.log(2))
    assert made(parts).target_entropy == pytest.approx(0.1 * (3 * math.log(2) + math.log(20)) - 2)
