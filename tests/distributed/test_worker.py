"""`RolloutWorker`: what a new life begins with."""

import dataclasses
import functools
import json
from typing import Any

import numpy as np
import pytest
import torch

from palaestra import PPO, EnvConfig, PPOConfig, RunSeeds
from palaestra.core import POLICY, EnvError, StepType
from palaestra.distributed import ActingWeights, AgentsFactory, CollectorFactory, RolloutWorker, acting_weights
from palaestra.distributed import worker as worker_module
from palaestra.distributed.worker import shared_out
from palaestra.envs import probe_specs
from palaestra.multiagent import SelfPlayConfig
from palaestra.policies import Policy
from palaestra.runtime import LocalRuntime, ProcessRuntime
from tests.distributed.parts import QUICK
from tests.distributed.runs import copied, iterate, make_trainer
from tests.distributed.test_agents_factory import RANDOM, TWO_KINDS, actors
from tests.faults.parts import differences

KINDS = {
    "serial": EnvConfig(name="CartPole-v1", num_envs=2),
    "native": EnvConfig(name="CartPole-v1", num_envs=2, vectorization="native"),
    "tensors": EnvConfig(name="palaestra.envs.tiny:TensorCartPole", num_envs=2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_life_sees_no_episode_of_an_earlier_one(kind):
    """F14: seeds go on where the last fragment ended, native pools and tensor environments included; each life is the
    same whenever it is lived."""
    env = KINDS[kind]
    observation_spec, action_spec, _ = probe_specs(env)
    make = functools.partial(PPO, observation_spec, action_spec, PPOConfig(unroll_length=8), RunSeeds(0))
    workers = CollectorFactory(env=env, algorithm=make, num_workers=1)
    weights = acting_weights({POLICY: make().policy})

    def life(position):
        worker = RolloutWorker(workers, 0)
        worker.begin(position)
        fragment = worker.collect(40, weights, episodes=False, random=())
        worker.close()
        assert fragment.lanes is not None
        ((_, rows),) = fragment.pieces[POLICY]
        return rows["observation"], {"lanes": fragment.lanes}, worker._parts.policies[POLICY].generator.get_state()

    seen, position = [], None
    for number in range(3):
        observation, after, _ = life(position)
        assert torch.equal(observation, life(position)[0]), number
        seen.append(observation)
        position = after
    assert not torch.equal(life(None)[2], life(position)[2])  # nor does it make the same choices
    starts = np.concatenate([observation[0].numpy() for observation in seen])
    assert len(np.unique(starts, axis=0)) == 6


def test_a_worker_that_was_asked_for_its_state_more_often_ends_in_the_same_one():
    """F25: a checkpoint that an interruption adds changes nothing that is saved later."""
    env = KINDS["serial"]
    observation_spec, action_spec, _ = probe_specs(env)
    make = functools.partial(PPO, observation_spec, action_spec, PPOConfig(unroll_length=8), RunSeeds(0))
    weights, states = acting_weights({POLICY: make().policy}), []
    for interrupted in (False, True):
        worker = RolloutWorker(CollectorFactory(env=env, algorithm=make, num_workers=1), 0)
        worker.begin(None)
        for number in range(4):
            worker.collect(10, weights, episodes=False, random=())
            if interrupted and number == 1:
                worker.state()
        states.append(worker.state())
        worker.close()
    assert differences(*states) == []


@pytest.mark.parametrize("on_fault", ["raise", "restart"])
def test_an_environment_has_its_number_of_the_whole_run(on_fault):
    """F1: the fourth of four is the second environment of the second worker."""
    fine: Any = {"kwargs": {"mode": "fine"}}
    variants = (fine, fine, fine, {"kwargs": {"mode": "raise"}})
    env = EnvConfig(name="tests.faults.broken:Broken", num_envs=4, variants=variants, on_fault=on_fault)
    observation_spec, action_spec, _ = probe_specs(EnvConfig(name=env.name, kwargs={"mode": "fine"}))
    make = functools.partial(PPO, observation_spec, action_spec, PPOConfig(unroll_length=8), RunSeeds(0))
    worker = RolloutWorker(CollectorFactory(env=env, algorithm=make, num_workers=2), 1)
    weights = acting_weights({POLICY: make().policy})
    if on_fault == "raise":
        with pytest.raises(EnvError, match=r"^environment 3 raised ValueError in episode 0"):
            worker.collect(4, weights, episodes=False, random=())
    else:
        (fault,) = worker.collect(4, weights, episodes=False, random=()).faults
        assert (fault.env_id, fault.handled) == (3, "restart")
    worker.close()


def test_policies_of_a_run_draw_from_generators_of_their_own():
    """F25: noise that is the same on all workers would be the same experience several times over."""
    env = dataclasses.replace(KINDS["serial"], num_envs=3)
    make = functools.partial(PPO, *probe_specs(env)[:2], PPOConfig(), RunSeeds(0))
    one: Any = CollectorFactory(env=env, algorithm=make, num_workers=3)
    agents = functools.partial(actors, RANDOM, TWO_KINDS)
    several: Any = AgentsFactory(env=dataclasses.replace(RANDOM, num_envs=3), actors=agents, num_workers=3)
    for factory, count in ((one, 3), (several, 6)):
        policies = [policy for worker in range(3) for policy in factory(worker).policies.values()]
        assert len({policy.generator.initial_seed() for policy in policies}) == len(policies) == count


def test_f14_a_new_life_draws_anew_for_all_that_act(monkeypatch):
    """Rules and snapshots of self-play too; else they would repeat the choices of who was there first."""
    rules = functools.partial(actors, RANDOM, TWO_KINDS, "odd")
    shop = dataclasses.replace(RANDOM, name="palaestra.multiagent:Meeting", kwargs={})
    games = functools.partial(actors, shop, {"*": "all"})
    self_play = SelfPlayConfig(pool_size=2)
    for factory in (
        AgentsFactory(env=RANDOM, actors=rules, num_workers=1),
        AgentsFactory(env=shop, actors=games, num_workers=1, self_play=self_play),
    ):
        first = RolloutWorker(factory, 0)
        lanes, lives = first.collect(1, episodes=False, random=()).lanes, list[list[int]]()
        for episode in (0, 3, 4):
            worker, seeds = RolloutWorker(factory, 0), list[int]()
            position = {"lanes": {**(lanes or {}), "episode": np.full(4, episode)}, "opponents": first.opponents()}
            with monkeypatch.context() as patch:
                patch.setattr(Policy, "seed", lambda policy, seed, seeds=seeds: seeds.append(seed))
                worker.begin(position)
            lives.append(seeds[-2:])  # of what learns, and of what does not
            worker.close()
        first.close()
        assert len({seed for life in lives for seed in life}) == 6


def test_chaos_in_one_environment_of_the_run_is_chaos_in_that_one_of_its_worker():
    env = EnvConfig(name="CartPole-v1", num_envs=4, chaos="raise@2#3,nan@9")
    observation_spec, action_spec, _ = probe_specs(EnvConfig(name="CartPole-v1"))
    make = functools.partial(PPO, observation_spec, action_spec, PPOConfig(unroll_length=4), RunSeeds(0))
    workers = CollectorFactory(env=env, algorithm=make, num_workers=2)
    assert [workers.share(worker)[0].chaos for worker in range(2)] == ["nan@9", "raise@2#1,nan@9"]
    weights = acting_weights({POLICY: make().policy})
    quiet, struck = (RolloutWorker(workers, worker) for worker in range(2))
    for worker in (quiet, struck):
        worker.begin(None)
    assert quiet.collect(4, weights, episodes=False, random=()).info.rows == 4
    with pytest.raises(EnvError, match=r"environment 3 .*chaos"):
        struck.collect(4, weights, episodes=False, random=())
    for worker in (quiet, struck):
        worker.close()


class Open(RolloutWorker):
    """Lets a test see what it acts with."""

    def acting(self):
        return acting_weights(self._parts.policies)


def change(policies, rng, turn):
    """Some tensors of some policies, or what explores; in some turns all of them, in some nothing."""
    for policy in policies.values():
        tensors = list(policy.state_dict().values())
        share = [0.0, 0.2, 0.2, 0.4, 1.0][rng.integers(5)]
        for tensor in tensors:
            if rng.random() < share:
                tensor.view(-1)[rng.integers(tensor.numel())] = [rng.normal(), float("nan"), -0.0, 0.0][rng.integers(4)]
        policy.version += share > 0
        policy.exploration.strength = 1 / (1 + turn // 3)


def assert_same_weights(told, policies):
    expected = acting_weights(policies)
    assert told.keys() == expected.keys()
    for name, one in expected.items():
        assert {**told[name], "tensors": None} == {**one, "tensors": None}
        for key, tensor in one["tensors"].items():
            assert torch.equal(told[name]["tensors"][key].view(torch.int32), tensor.view(torch.int32)), (name, key)


@pytest.mark.parametrize("place", ["local", pytest.param("process", marks=pytest.mark.slow)])
def test_workers_that_get_what_changed_have_all_bits_whatever_they_missed(place, monkeypatch):
    """MARO-13, F14: those that follow, that were away for some versions, and that begin anew."""
    monkeypatch.setattr(worker_module, "_UNSEEN", 1)
    rng, make = np.random.default_rng(0), functools.partial(actors, RANDOM, TWO_KINDS)
    policies: dict[str, Any] = {name: one.policy for name, one in make()[1].items()}
    weights, sizes = ActingWeights(policies), list[int]()
    factory = AgentsFactory(env=RANDOM, actors=make, num_workers=2, seed=3)
    with LocalRuntime(QUICK) if place == "local" else ProcessRuntime(QUICK) as runtime:
        follows, skips = (runtime.start(functools.partial(Open, factory, number), name="w") for number in (0, 1))
        for turn in range(80):
            change(policies, rng, turn)
            shared = weights.newest()
            assert len(shared) <= 4
            if turn % 30 == 29:
                runtime.restart(follows)
            called = [follows, skips] if rng.random() < 0.2 else [follows]
            for worker in called:
                runtime.call(worker, "collect", 1, *shared, episodes=False, random=())
                (answer,) = runtime.wait([runtime.call(worker, "acting")], timeout_s=60)
                assert_same_weights(answer.unwrap(), policies)
            sizes.append(len(shared))
    assert set(sizes) == {1, 2, 3, 4}


def test_only_what_has_changed_is_encoded():
    policies: dict[str, Any] = {name: one.policy for name, one in actors(RANDOM, TWO_KINDS)[1].items()}
    weights = ActingWeights(policies)
    (whole,) = weights.newest()
    assert weights.newest() == [whole]
    policies["odd"].version += 1
    _, second = weights.newest()
    assert second.view()["odd"]["tensors"] == {}
    policies["odd"].exploration.strength = 0.25
    policies["odd"].exploration.progress = 0.5
    first, third = weights.newest()
    assert first is whole
    assert [third.view()["odd"][key] for key in ("version", "exploration", "tensors")] == [1, (0.25, 0.5), {}]
    assert third.view().keys() == {"odd"}
    for policy in policies.values():
        policy.version += 1
        for tensor in policy.parameters():
            tensor.data += 1
    (fourth,) = weights.newest()
    assert fourth.message.size_bytes == pytest.approx(whole.message.size_bytes, abs=64)


def test_an_exploration_on_a_worker_knows_the_progress_of_the_run():
    """Where its strength does not follow it, too."""
    learns, acts = ({"odd": actors(RANDOM, TWO_KINDS)[1]["odd"].policy} for _ in range(2))
    weights = ActingWeights(learns)
    for progress in (0.0, 0.5):
        learns["odd"].exploration.progress = progress
        for one in weights.newest():
            worker_module.load_acting_weights(acts, one.view())
        assert acts["odd"].exploration.progress == progress


def test_a_policy_that_changes_whole_is_compared_now_and_then():
    """Comparing costs more than sending; what freezes later is noticed."""
    policies: dict[str, Any] = {"odd": actors(RANDOM, TWO_KINDS)[1]["odd"].policy}
    weights, policy, counts = ActingWeights(policies), policies["odd"], list[int]()
    for turn in range(40):
        policy.version += 1
        for tensor in list(policy.parameters())[-1 if turn > 20 else 0 :]:
            tensor.data += 1
        counts.append(len(weights.newest()[-1].view()["odd"]["tensors"]))
    whole = len(policy.state_dict())
    first = counts.index(1)
    assert 21 <= first <= 21 + 16
    assert counts == [whole] * first + [1] * (40 - first)


def test_lanes_are_shared_out_where_only_some_workers_were_told_attributes():
    told = {"lane_seed": np.array([1]), "episode": np.array([3]), "attributes": '[[{}, {"gravity": 1}]]'}
    other = {"lane_seed": np.array([2]), "episode": np.array([4])}
    for pair, attributes in (([told, other], [[{}, {"gravity": 1}], [{}, {}]]), ([other, told], None)):
        (position,) = shared_out(pair, 1)
        found = json.loads(position["lanes"]["attributes"])
        assert found == (attributes or [[{}, {}], [{}, {"gravity": 1}]])
        assert sorted(position["lanes"]["lane_seed"].tolist()) == [1, 2]


def test_a_resumed_worker_whose_environments_begin_anew_sends_their_first_steps():
    """F25: a pool cannot go on in an episode; the open row of the one that broke off stood in place of the new one's
    first, and what followed seemed to go on."""
    env = KINDS["native"]
    observation_spec, action_spec, _ = probe_specs(env)
    make = functools.partial(PPO, observation_spec, action_spec, PPOConfig(unroll_length=8), RunSeeds(0))
    weights, position = acting_weights({POLICY: make().policy}), None
    for steps in (3, 4):
        worker = RolloutWorker(CollectorFactory(env=env, algorithm=make, num_workers=1), 0)
        assert worker.begin(position) == "statistical"
        fragment = worker.collect(steps, weights, episodes=False, random=())
        ((_, rows),) = fragment.pieces[POLICY]
        assert rows["step_type"].tolist() == [[StepType.FIRST] * 2, *[[StepType.MID] * 2] * steps]
        assert (rows["observation"][0].abs() <= 0.05).all()  # where CartPole begins
        position = worker.state()
        worker.close()


@pytest.mark.parametrize("unknown", [0, 3])
def test_environments_of_a_worker_that_never_answered_begin_and_the_others_go_on(unknown):
    """F14, F25: with another number of workers; all of them began again with episodes that had been played."""
    with LocalRuntime() as first, LocalRuntime() as second:
        trainer = make_trainer(first, "ppo", num_workers=4)
        iterate(trainer, 3)
        state = copied(trainer.state())
        lanes = [state["collect"]["workers"][str(worker)]["lanes"] for worker in range(4)]
        state["collect"]["workers"][str(unknown)] = None
        resumed = make_trainer(second, "ppo", num_workers=2)
        resumed.load_state(state)
        iterate(resumed, 1)
        after = [worker.position["lanes"] for worker in resumed.collector.group.workers]
    seeds, episodes = (np.concatenate([one[name] for one in after]).tolist() for name in ("lane_seed", "episode"))
    assert seeds == [int(one["lane_seed"][0]) for one in lanes]
    played = [int(one["episode"][0]) for one in lanes]
    assert min(played) >= 1
    for lane, (now, before) in enumerate(zip(episodes, played, strict=True)):
        assert (now < before) if lane == unknown else (now > before)
