"""How many checkpoints a run keeps."""

import pytest

from tests.experiments.parts import trained


@pytest.mark.parametrize("keep", [2, 5])
def test_as_many_checkpoints_are_kept_as_the_configuration_says(keep, tmp_path):
    """Fewer than the 3 of the default, or more; five are due."""
    settings = {"trainer__checkpoint_every_steps": 16, "trainer__eval_episodes": 1}
    run = trained(tmp_path, trainer__keep_checkpoints=keep, **settings).directory
    steps = sorted(int(path.name.removeprefix("step_")) for path in (run / "checkpoints").glob("step_*"))
    assert len(steps) == keep
    assert steps[-1] == 96
