"""The main job, as a user does it: minutes."""

import pytest

import palaestra


@pytest.mark.slow
def test_ppo_solves_cartpole_with_the_preset(tmp_path):
    """Issue 2, point 1: a deterministic evaluation return of 500 within 100k env steps."""
    done = palaestra.train("ppo", "CartPole-v1", run__directory=str(tmp_path), run__tensorboard=False)
    assert done.result.status == "done"
    evaluation = palaestra.evaluate_run(str(done.directory), episodes=20)
    assert evaluation.return_mean == 500.0
    assert evaluation.deterministic
