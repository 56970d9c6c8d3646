"""`check_multi_agent_env`: what is wrong with an environment of one's own, in words."""

import numpy as np
import pytest

from palaestra.cli import main
from palaestra.multiagent import Meeting, check_multi_agent_env
from tests.multiagent.parts import RandomWorld, Shop


@pytest.mark.parametrize("make", [Meeting, Shop, RandomWorld])
def test_a_sound_environment_passes(make):
    """USERS need 5."""
    report = check_multi_agent_env(make, steps=60)
    assert report.ok, str(report)
    assert len(report.findings) == 5


def test_randomness_that_no_seed_determines_is_found():
    class Loose(Meeting):
        def begin_episode(self, seed):
            return super().begin_episode(int(np.random.SeedSequence().entropy) % 1000)

    report = check_multi_agent_env(Loose, steps=60)
    assert not report.ok
    assert "take all randomness from the seed" in str(report)


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
    assert "5 rules: 0 broken" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["check-env", "tests.multiagent.test_envs:Told"])
    assert ended.value.code == 3
    with pytest.raises(SystemExit) as ended:
        main(["check-env", "palaestra.multiagent:Meeting", "--env.max-episode-steps", "3"])
    assert ended.value.code == 2
    assert "only env.kwargs means something" in capsys.readouterr().err
