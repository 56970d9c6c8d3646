"""Many agents whose environments are stepped by workers."""

import dataclasses

import pytest

import palaestra
from palaestra import RunSeeds, Trainer, preset
from palaestra.config.config import config_from_mapping
from palaestra.core import ConfigError
from palaestra.distributed import TrainerAllocator
from palaestra.runs.build import make_learner
from palaestra.runtime import LocalRuntime
from tests.distributed.runs import assert_same
from tests.experiments.parts import trained

WORLD = "palaestra.multiagent:Meeting"


def config_of(algorithm, **distributed):
    base = preset(algorithm, WORLD)
    small = {"unroll_length": 6} | ({"capacity": 200, "learning_starts": 0} if algorithm == "dqn" else {})
    settings = {"env": {"num_envs": 4}, "algorithm": small, "distributed": distributed}
    return config_from_mapping(type(base), settings, base=base)


def state_after(config, iterations, *, acting_as_worker=False):
    """What all policies have learned, bit by bit."""
    agents = make_learner(config)
    if acting_as_worker:
        for number, policy in enumerate(agents.policies.values()):
            policy.seed(RunSeeds(config.run.seed).integer("acting", 1 + number))
    with agents.collecting({}) as made:
        collect = made.collector
        trainer = Trainer(collect, agents.manager, config.trainer)
        for _ in range(iterations):
            trainer.train_iter()
        state = {"env_steps": collect.env_steps}
        for name, algorithm in agents.algorithms.items():
            learned = algorithm.state_tensors()
            state |= {f"{name}.{key}": value for key, value in learned.items() if key != "generator.acting"}
        return state


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_one_worker_learns_what_the_collector_of_many_agents_does(algorithm):
    """There is no second training path for many agents."""
    here = state_after(config_of(algorithm), 4, acting_as_worker=True)
    assert_same(state_after(config_of(algorithm, runtime="local", num_workers=1), 4), here)


def test_processes_give_the_same_weights_as_workers_in_this_process():
    config = config_of("ppo", runtime="local", num_workers=2)
    elsewhere = dataclasses.replace(config, distributed=dataclasses.replace(config.distributed, runtime="process"))
    assert_same(state_after(elsewhere, 3), state_after(config, 3))


def test_gradient_workers_are_shared_out_as_the_configuration_says():
    """MARO-27: a setting of the run, here in proportion to the agents of each policy."""
    learner = make_learner(config_of("ppo", runtime="local", num_learners=4, allocation="by-agent"))
    with learner.collecting({}) as made:
        workers = learner.manager_on(made.runtime)._workers
        assert sorted(number for mine in workers.allocation.values() for number in mine) == [0, 1, 2]
        assert (
            workers.allocation
            == TrainerAllocator("by-agent", 3, list(learner.algorithms), agents=learner.num_agents).allocate()
        )


@pytest.mark.parametrize("learners", [1, 3])
def test_learners_and_hosts_ask_for_the_gpus_that_the_run_sets_aside(learners):
    """Hosts and replicas exchange gradients, and are one placement group; hosts alone need none."""
    given = {"runtime": "ray", "num_learners": learners, "num_policy_hosts": 1, "num_gpus_per_learner": 0.5}
    with LocalRuntime() as runtime:
        make_learner(config_of("ppo", **given)).manager_on(runtime)
        started = list(runtime._workers.values())
        assert [one.name for one in started] == ["grad-worker"] * (learners - 1) + ["policy-host"]
        assert [one.resources for one in started] == [{"GPU": 0.5}] * learners
        groups = [] if learners == 1 else [started]
        assert [group.workers for group in runtime._groups] == groups
    with pytest.raises(ConfigError, match="num_gpus_per_learner is 0"):
        config_of("ppo", **{**given, "runtime": "process"})


def test_an_allocation_of_a_single_learner_is_refused():
    with pytest.raises(ConfigError, match="shares out learners"):
        config_of("ppo", runtime="local", allocation="by-agent")


def test_runs_with_workers_and_without_keep_other_things(tmp_path):
    """F27: said before anything starts, where a checkpoint would not fit."""
    run = trained(tmp_path).directory
    for setting, value in (("distributed__runtime", "local"), ("distributed__mode", "async")):
        with pytest.raises(ConfigError, match="cannot"):
            palaestra.resume(run, trainer__total_env_steps=160, **{setting: value, "distributed__runtime": "local"})


def test_a_run_without_its_cluster_leaves_no_directory(tmp_path, monkeypatch):
    """The name was used up by a run that had not begun."""

    def not_there(config):
        raise ConfigError("cannot be joined")

    monkeypatch.setattr("palaestra.runs.learner.make_runtime", not_there)
    with pytest.raises(ConfigError, match="cannot be joined"):
        trained(tmp_path, distributed__runtime="local")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [8, 2])  # 2 is the default
def test_settings_of_workers_need_workers(tmp_path, number):
    """F27: they would do nothing."""
    with pytest.raises(ConfigError, match=rf"distributed\.num_workers is {number}, but this run has no workers"):
        trained(tmp_path, distributed__num_workers=number)
    assert not list(tmp_path.iterdir())
