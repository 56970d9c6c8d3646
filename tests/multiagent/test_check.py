"""`check_multi_agent_env`: what is wrong with an environment of one's own, in words."""

import functools

import numpy as np
import pytest

from palaestra.cli import main
from palaestra.core import NonFiniteError
from palaestra.multiagent import Meeting, MultiAgentEnvs, check_multi_agent_env
from tests.multiagent.parts import RandomWorld, Shop


@pytest.mark.parametrize("make", [Meeting, Shop, RandomWorld])
def test_a_sound_environment_passes(make):
    """USERS need 5."""
    report = check_multi_agent_env(make, steps=60)
    assert report.ok, str(report)
    assert len(report.findings) == 7


def test_randomness_that_no_seed_determines_is_found():
    class Loose(Meeting):
        def begin_episode(self, seed):
            return super().begin_episode(int(np.random.SeedSequence().entropy) % 1000)

    report = check_multi_agent_env(Loose, steps=60)
    assert not report.ok
    assert "take all randomness from the seed" in str(report)


class Interfering(Meeting):
    """Deterministic alone: its steps are counted by its class."""

    count = 0

    def begin_episode(self, seed):
        Interfering.count = 0
        return self.told(super().begin_episode(seed))

    def advance(self, actions):
        Interfering.count += 1
        return self.told(super().advance(actions))

    def told(self, outcome):
        steps = {
            name: step._replace(reward=float(Interfering.count) if step.step_type else 0.0)
            for name, step in outcome.time_steps.items()
        }
        return outcome._replace(time_steps=steps)


def test_environments_that_disturb_each_other_are_found():
    """Each gives its steps alone; several are stepped in turn."""
    wrong = [finding for finding in check_multi_agent_env(Interfering, steps=60).findings if not finding.ok]
    assert [finding.rule for finding in wrong] == ["Two environments do not disturb each other"]
    assert "keep state in the instance" in wrong[0].fix


class Far(Shop):
    """Leaves its bounds, or those of float32, after so many ticks."""

    def __init__(self, value=5000.0, after=3):
        super().__init__(length=40)
        self.value, self.after = value, after

    def get_state(self, agent):
        seen = super().get_state(agent).astype(np.float64)
        return seen if self.tick < self.after else seen + self.value


def test_observations_outside_their_space_are_found_by_the_check_and_told_of_once_in_a_run(caplog):
    """They went unsaid, where those of single agents are looked at in every 16th step."""
    report = check_multi_agent_env(Far, steps=60)
    (wrong,) = (finding for finding in report.findings if not finding.ok)
    assert wrong.rule == "Observations are in their spaces"
    assert wrong.got.startswith("agent 'buyer' emitted observation[0] = 5003.0 outside [-1.0, 1000.0]")
    caplog.clear()
    with MultiAgentEnvs([Far], lane_seeds=[1]) as envs:
        (outcome,) = envs.reset()
        for step in range(40):
            assert bool(caplog.messages) == (step >= 16)
            (outcome,) = envs.step([{name: 0 for name, one in outcome.time_steps.items() if not one.last}])
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("agent 'buyer' emitted observation[0] = 5016.0 outside")


def test_an_observation_that_its_dtype_cannot_hold_is_not_finite():
    """It was looked at before the cast, and infinite in the buffer."""
    with (
        MultiAgentEnvs([functools.partial(Far, 1e300, 0)], lane_seeds=[1]) as envs,
        pytest.raises(NonFiniteError, match=r"emitted observation\[0\] = inf for agent 'buyer'"),
    ):
        envs.reset()


def test_agents_that_never_act_and_episodes_that_never_end_are_warnings():
    class Endless(Shop):
        def __init__(self):
            super().__init__(length=10**9)

        def run(self, env_action):
            self.tick += 1
            return ["buyer"]

        def start(self, seed):
            super().start(seed)
            return ["buyer"]

    report = check_multi_agent_env(Endless, steps=60)
    assert report.ok
    assert "painter never did" in str(report)
    assert "none of 60 steps was the last" in str(report)


def test_the_command_line_checks_environments_by_name(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["check-env", "palaestra.multiagent:Meeting"])
    assert ended.value.code == 0
    assert "7 rules: 0 broken" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["check-env", "tests.multiagent.test_envs:Told"])
    assert ended.value.code == 3
    with pytest.raises(SystemExit) as ended:
        main(["check-env", "palaestra.multiagent:Meeting", "--env.max-episode-steps", "3"])
    assert ended.value.code == 2
    assert "only env.kwargs means something" in capsys.readouterr().err
