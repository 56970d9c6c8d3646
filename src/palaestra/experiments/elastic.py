"""Learners that join and leave a run while it goes on."""

import logging
import time
from pathlib import Path

from palaestra.core import CheckpointError, ConfigError
from palaestra.core.files import replace_text
from palaestra.core.reading import last_line, parse_json, read_json
from palaestra.runs.run_directory import RunDirectory, find_run
from palaestra.training import Callback, TrainingRun

__all__ = ["count_learners", "scale"]

_log = logging.getLogger(__name__)
_FILE, _PERIOD_S = "scale.json", 0.5


def scale(run: str | Path, *, learners: int, root: str | Path = "runs") -> str:
    """Asks a run that goes on to learn with another number of learners; it has them from its next updates on.

    Learned is the same, bit for bit, whoever was there when: minibatches are cut into `distributed.gradient_shards`
    parts in any case. A learner that joins gets the whole state; one that leaves ends between two updates.

    Args:
        run: its name or directory.
        learners: how many, the run's process among them; at most `distributed.gradient_shards`.
        root: folder of runs.

    Returns:
        What was asked, for people.

    Raises:
        CheckpointError: there is no such run.
        ConfigError: it does not go on now, or cannot have so many.
    """
    directory = find_run(run, root)
    settings, shards = directory.config.distributed, directory.config.distributed.gradient_shards
    if shards is None or settings.allocation is not None:
        raise ConfigError(
            f"{directory.path} has no distributed.gradient_shards, or shares its learners out (allocation), so that "
            "what it learns would depend on their number; learners join and leave runs with gradient_shards alone"
        )
    if not 1 <= learners <= shards:
        raise ConfigError(f"learners is {learners}; give 1 to {shards}, which are distributed.gradient_shards")
    _require_running(directory, learners)
    replace_text(directory.path / _FILE, f'{{"learners": {learners}}}\n')
    return f"learners    {learners} from the next updates on"


def count_learners(run: str | Path, *, root: str | Path = "runs") -> tuple[int, int]:
    """How many learners a run that goes on has, by its newest row of metrics, and how many it was asked to have.

    Args:
        run: its name or directory.
        root: folder of runs.

    Raises:
        CheckpointError: there is no such run.
        ConfigError: it does not go on now.
    """
    directory = find_run(run, root)
    settings, path = directory.config.distributed, directory.path
    _require_running(directory, settings.num_learners)
    newest = last_line(path / "metrics.jsonl") if (path / "metrics.jsonl").is_file() else b""
    row: dict[str, float] = parse_json(newest or "{}")
    if row.get("env_steps", 0) <= (directory.info.get("resumed_at") or -1):  # of the session before
        row = {}
    there, asked = (int(row.get(f"learners/{name}", settings.num_learners)) for name in ("there", "asked"))
    try:
        return there, int(read_json(path / _FILE)["learners"])
    except CheckpointError:  # nobody has asked since
        return there, asked


def _require_running(directory: RunDirectory, learners: int) -> None:
    if (status := directory.status) == "created" and directory.in_use:
        raise ConfigError(f"{directory.path} is still starting; ask again when `palaestra list runs` calls it running")
    if status != "running":
        raise ConfigError(
            f"{directory.path} does not go on now ({status}); continue it with as many: palaestra resume "
            f"{directory.path} [--until ENV_STEPS] --override distributed.num_learners={learners}"
        )


class FollowScale(Callback):
    """Does what `scale` asks for; a run that begins or is resumed has the learners of its settings."""

    def __init__(self, path: Path) -> None:
        self._file, self._look_at_s, self._asked = (path / _FILE).absolute(), 0.0, 0
        self._file.unlink(missing_ok=True)

    def iteration_began(self, trainer: TrainingRun) -> None:
        """See `Callback.iteration_began`; looks for a request now and then."""
        now_s = time.monotonic()
        workers = getattr(trainer.learner, "gradient_workers", None)
        if workers is None or now_s < self._look_at_s or not self._file.exists():
            return
        self._look_at_s = now_s + _PERIOD_S
        try:
            try:
                asked = read_json(self._file)
            finally:
                self._file.unlink(missing_ok=True)  # whoever asks while learners join is heard next
            workers.resize(int(asked["learners"]) - 1)
            self._asked = int(asked["learners"])
        except (CheckpointError, ConfigError, KeyError, ValueError) as error:
            _log.warning("the number of learners stays as it is: %s", error)

    def logged(self, trainer: TrainingRun, row: dict[str, float]) -> None:
        """See `Callback.logged`; who joins takes a while to be there."""
        row |= {"learners/asked": self._asked} if self._asked else {}
