"""A policy as a folder for others: made from a run, checked before it is used, and the way to a model hub and back."""

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palaestra import experiments
from palaestra.analysis.labels import sets_apart
from palaestra.config.config import config_to_mapping
from palaestra.core import CheckpointError, ConfigError, PalaestraError, files, import_extra
from palaestra.core.errors import placeless, printable
from palaestra.deployment import zoo
from palaestra.deployment.card import OF_A_MACHINE, inside, model_card, public_changes, typed
from palaestra.policies import Policy, copy_policy

__all__ = ["SharedPolicy", "check_shared", "pull", "share"]

_FORMAT = 1
_MANIFEST, _CARD = "manifest.json", "README.md"
_KNOWN = re.compile(
    r"config\.yaml|evals/evaluation\.json|curve\.(png|csv)|replay\.mp4"
    r"|policy/([^/.][^/]*/)?(policy\.json|weights\.safetensors)"
)
"""What a manifest may list; the card may change on a hub, and is nothing that is read."""
_UNLISTED = (_MANIFEST, _CARD, ".gitattributes")
_MOST_BYTES = {".safetensors": 2**33, ".mp4": 2**28}
_MOST_BYTES_OF_TEXT = 2**24
_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)


@dataclass(frozen=True)
class SharedPolicy:
    """A shared folder."""

    directory: Path
    """Where it lies; `play`, `eval` and `load_policy` take it."""
    facts: dict[str, Any]
    """What its manifest says: `algorithm`, `environment`, `wrappers` (which its user has to apply), `seed`,
    `env_steps`, `evaluation`, `random` (the same of random actions), `seeds`, `weights_sha256`, `command`, `revision`,
    `versions`, and `files` with their hashes."""
    missing: tuple[str, ...] = ()
    """What could not be made for it, and why: a film, a curve."""
    url: str | None = None
    """On the hub, where it was pushed."""

    def __str__(self) -> str:
        facts = self.facts
        mean, std, episodes = (facts["evaluation"][key] for key in ("return_mean", "return_std", "episodes"))
        lines = [
            f"policy      {facts['algorithm']} on {facts['environment']}, seed {facts['seed']}",
            f"return      {mean:.2f}, standard deviation {std:.2f} ({episodes} episodes)",
        ]
        if facts["seeds"] is not None:
            low, high = facts["seeds"]["ci95"]
            count, mean = len(facts["seeds"]["return_mean"]), facts["seeds"]["mean"]
            lines.append(f"seeds       {mean:.2f}, 95% interval {low:.2f} to {high:.2f} over {count} seeds")
        several = len(facts["weights_sha256"]) > 1
        for place, value in facts["weights_sha256"].items():
            lines.append(f"weights     {value}{f'  {place}' if several else ''}")
        lines += [f"wrappers    {inside(wrappers)}"] if (wrappers := facts.get("wrappers")) else []
        lines += [f"left out    {what}" for what in self.missing]
        lines += [f"folder      {self.directory}", *([f"pushed      {self.url}"] if self.url else [])]
        return printable("\n".join(lines))


def share(
    name: str | Path,
    *,
    output: str | Path | None = None,
    push: str | None = None,
    root: str | Path = "runs",
    episodes: int = 20,
    film: bool = True,
) -> SharedPolicy:
    """Makes a folder for others of a run's best policy, or of that of the best seed of a group.

    It holds the policy as safetensors and JSON, `config.yaml`, an evaluation on episodes that are new to the policy, a
    model card with front matter for model hubs, the curve, a film where the environment draws pictures, and
    `manifest.json` with the hash of every file. Paths, names of machines and checkpoints stay out.

    Args:
        name: path or name of a run or group, or `last`.
        output: the folder, which must not exist; by default `shared/` and the run's name.
        push: `NAMESPACE/NAME` of a model on the hub, to which it is pushed as well; needs the extra `hub`, and a token
            (`HF_TOKEN`, or `hf auth login`). `HF_ENDPOINT` is the hub, https://huggingface.co by default.
        root: the folder of runs.
        episodes: of the evaluation, of every seed.
        film: whether to film an episode.

    Raises:
        CheckpointError: there is no such run, it has no best policy yet, or the hub refused.
        ConfigError: the folder exists, it is a shared policy, or the runs are not seeds of one experiment.
    """
    runs = experiments.begun_runs([name], root)
    _require_own(runs)
    target = Path(output) if output is not None else Path("shared") / _title(runs)
    _require_free(target)
    run = experiments.best_run(runs)
    experiments.policies_of_run(run)  # which says what is wrong before there is a folder or a model on the hub
    if push is not None:
        _create(_require_repository(push))
    missing: list[str] = []
    with files.whole_folder(target, "shared folder") as folder:
        hashes = _copy_policies(run.path, folder)
        learner, policies = experiments.policies_of_run(run)
        found = experiments.evaluate_runs([run.path for run in runs], episodes=episodes, baseline=True)
        with files.temporary_folder("shared") as again:
            changed = _copy_policies(run.path, again) != hashes
        if changed:
            raise ConfigError(f"{run.path} still trains, and kept a better policy meanwhile; share it once more")
        experiments.save_config(_published(run.config), folder / "config.yaml")
        evaluation = found.runs[str(run.path)].to_json() | {"seed": run.config.run.seed + experiments.FRESH_SEED}
        (folder / "evals").mkdir()
        files.write_json(folder / "evals/evaluation.json", evaluation)
        _draw(runs, folder, missing)
        if film:
            _film(learner, policies, folder, missing)
        facts = _facts(run, evaluation, _seeds(runs, found), hashes)
        facts["wrappers"] = list(max((policy.wrappers for policy in policies.values()), key=len))
        facts |= {"random": None if found.baseline is None else _short(found.baseline.to_json())}
        names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("[!.]*")) if path.is_file()]
        (folder / _CARD).write_text(model_card(facts, names, push or target.name), encoding="utf-8")
        facts |= {"format_version": _FORMAT, "files": {name: files.fingerprint(folder / name) for name in names}}
        files.write_manifest(folder, facts)
    url = None
    if push is not None:
        try:
            url = _push(target, push)
        except CheckpointError as error:
            error.add_note(
                f"the folder {target} is whole; `hf upload {push} {shlex.quote(str(target))}` pushes it, too"
            )
            raise
    return SharedPolicy(target, facts, tuple(missing), url)


def pull(source: str | Path, *, output: str | Path | None = None) -> SharedPolicy:
    """Gets a shared policy from the zoo or the hub, or checks a folder; nothing of what it names is imported.

    Args:
        source: a folder; `zoo:ALGORITHM/ENVIRONMENT`, see `zoo_policies`; or `NAMESPACE/NAME` on the hub, which needs
            the extra `hub`.
        output: where it is put; must not exist. By default `shared/NAME`; a folder is checked where it lies.

    Raises:
        CheckpointError: a file is missing, damaged, too large, a link, or none that belongs there; or the hub refused.
        ConfigError: `source` is neither, or the folder exists.
    """
    if Path(source).is_dir():
        facts = check_shared(source)
        if output is not None:
            _require_free(Path(output))
            _copy_listed(Path(source), Path(output), facts)
        return SharedPolicy(Path(output or source), facts)
    kind, prefix, name = str(source).rpartition(zoo.PREFIX)
    of_zoo = bool(prefix) and not kind
    repository = name if of_zoo else _require_repository(str(source))
    called = repository.replace("/", "_") if of_zoo else repository.partition("/")[2]
    target = Path(output) if output is not None else Path("shared") / called
    if called:
        _require_free(target)
    with files.temporary_folder("pulled") as temporary:
        try:
            (zoo.fetch if of_zoo else _download)(repository, temporary)
            shutil.rmtree(temporary / ".cache", ignore_errors=True)  # the client's notes on what it has
            facts = check_shared(temporary)
        except CheckpointError as error:  # of a folder that goes
            raise CheckpointError(str(error).replace(str(temporary), printable(str(source)))) from error
        _copy_listed(temporary, target, facts)
    return SharedPolicy(target, facts)


def check_shared(folder: str | Path) -> dict[str, Any]:
    """Checks that a folder is what `share` made, and holds nothing else.

    Args:
        folder: of a stranger.

    Returns:
        What its manifest says.

    Raises:
        CheckpointError: a file is missing, damaged, too large, a link, or none that belongs there.
    """
    folder = Path(folder)
    found = {name: path for name, path in _walk(folder) if name not in _UNLISTED}
    if not (folder / _MANIFEST).is_file():
        raise CheckpointError(
            f"{folder} has no {_MANIFEST}, so it is no shared policy; `palaestra share RUN` makes one of a run"
        )
    facts = files.read_manifest(folder, _FORMAT)
    listed: dict[str, Any] = facts["files"]
    if strange := sorted(found.keys() - listed.keys()):
        raise CheckpointError(f"{folder} holds {_names(strange)}, which its {_MANIFEST} does not list")
    for name, expected in listed.items():
        if not _KNOWN.fullmatch(name) or name not in found or not files.is_whole(found[name], expected):
            raise files.damage(folder / printable(name))
    _require_facts(folder, facts)
    return facts


def _require_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """What is printed has to be there, and of the right kind."""
    try:
        evaluation, seeds = facts["evaluation"], facts["seeds"]
        numbers = [evaluation["return_mean"], evaluation["return_std"], evaluation["episodes"]]
        numbers += [] if seeds is None else [seeds["mean"], *seeds["ci95"], len(seeds["return_mean"])]
        texts = [facts["algorithm"], facts["environment"], *facts["weights_sha256"].values()]
        texts += facts.get("wrappers", [])  # older ones have none
        right = all(isinstance(x, int | float) for x in numbers) and all(isinstance(x, str) for x in texts)
        right = right and "seed" in facts and any(name.endswith("weights.safetensors") for name in facts["files"])
    except (KeyError, TypeError, AttributeError, IndexError):
        right = False
    if not right:
        raise CheckpointError(f"{folder / _MANIFEST} lacks what `palaestra share` writes there; ask for a new one")


def _walk(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file by its name within the folder; what is no file, or not one of ours, is refused."""
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(place, name)
            inside = path.relative_to(folder).as_posix()
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise CheckpointError(f"{folder} holds {_names([inside])}, a link or device; only files belong there")
            if not path.is_dir():
                _require_known(str(folder), inside, path.stat().st_size)
                yield inside, path


def _require_known(where: str, name: str, size_bytes: int) -> None:
    if name not in _UNLISTED and not _KNOWN.fullmatch(name):
        raise CheckpointError(
            f"{where} holds {_names([name])}, which does not belong to a shared policy: those are safetensors, JSON, "
            "config.yaml, a curve and a film; no pickles, no code"
        )
    if size_bytes > (most := _MOST_BYTES.get(Path(name).suffix, _MOST_BYTES_OF_TEXT)):
        raise CheckpointError(f"{where} holds {_names([name])} of {size_bytes:,} bytes; at most {most:,} are taken")


def _names(names: Sequence[str]) -> str:
    return printable(", ".join(names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _copy_listed(source: Path, target: Path, facts: Mapping[str, Any]) -> None:
    with files.whole_folder(target, "shared folder") as folder:
        for name in (*facts["files"], *_UNLISTED):
            if (source / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source / name, folder / name)


# -- what goes into the folder


def _title(runs: Sequence[experiments.RunDirectory]) -> str:
    """The name of the run, or of the group that several are of."""
    path = runs[0].path.resolve()
    return path.name if len(runs) == 1 and not (path.parent / "group.json").is_file() else path.parent.name


def _require_free(target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise ConfigError(f"{target} exists already; give another folder as --output, or remove it")


def _require_own(runs: Sequence[experiments.RunDirectory]) -> None:
    """Refuses what is no run, and runs that are no seeds of one experiment."""
    if runs[0].is_shared:
        place = shlex.quote(str(runs[0].path))
        raise ConfigError(
            f"{place} is a shared policy already; `palaestra pull {place} --output FOLDER` checks and copies it, and "
            f"`hf upload NAMESPACE/NAME {place}` pushes it"
        )
    first = runs[0].config
    for run in runs[1:]:
        if different := [path for path in experiments.changes_between(first, run.config) if sets_apart(path)]:
            raise ConfigError(
                f"{runs[0].path} and {run.path} differ in {', '.join(different[:4])}; an interval is over seeds of one "
                "experiment: share one of the runs"
            )


def _copy_policies(run: Path, folder: Path) -> dict[str, str]:
    """Copies the policies of the best evaluation; returns the hashes of their weights, by their place."""
    hashes: dict[str, str] = {}
    for description in sorted((run / "policy").glob("**/policy.json")):
        place = description.parent.relative_to(run)
        (folder / place).mkdir(parents=True)
        hashes[place.as_posix()] = copy_policy(description.parent, folder / place)
    return hashes


def _published(config: experiments.ExperimentConfig) -> experiments.ExperimentConfig:
    """A configuration without what is of one machine."""
    public = {path.replace(".", "__"): value for path, value in OF_A_MACHINE.items()}
    whole = experiments.config_from_mapping(experiments.ExperimentConfig, public, base=config)
    return experiments.config_from_mapping(experiments.ExperimentConfig, placeless(config_to_mapping(whole)))


def _seeds(runs: Sequence[experiments.RunDirectory], found: experiments.RunsEvaluation) -> dict[str, Any] | None:
    if len(runs) == 1:
        return None
    means = {str(run.config.run.seed): found.runs[str(run.path)].return_mean for run in runs}
    return {"return_mean": means, "mean": found.return_mean, "ci95": list(found.return_ci95)}


def _facts(
    run: experiments.RunDirectory, evaluation: dict[str, Any], seeds: dict[str, Any] | None, hashes: dict[str, str]
) -> dict[str, Any]:
    info, config = run.info, run.config
    git = info.get("git") or {}
    began = info.get("began_from") or {}
    return {
        "algorithm": config.algorithm_name,
        "environment": config.env.name,
        "seed": config.run.seed,
        "env_steps": run.steps_done,
        "unit": config.unit,
        "evaluation": _short(evaluation) | {"seed": evaluation["seed"]},
        "seeds": seeds,
        "weights_sha256": hashes,
        "began_from_sha256": began.get("weights_sha256"),
        "command": typed(info.get("command") or []),
        "revision": f"{git['commit']}{'+' if git['dirty'] else ''}" if git else None,
        "overrides": public_changes(info.get("overrides", [])),
        "versions": info.get("versions", {}),
    }


def _short(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest says of an evaluation; the Elo of self-play, whose returns cancel out."""
    short = ("return_mean", "return_std", "return_ci95", "episodes", "deterministic")
    parts = evaluation["parts"]
    strength = {"elo_ci95": [parts["elo_low"], parts["elo_high"]]} if "elo" in parts else {}
    return {key: evaluation[key] for key in short} | strength


def _draw(runs: Sequence[experiments.RunDirectory], folder: Path, missing: list[str]) -> None:
    """The curve as numbers and, where matplotlib is installed, as a picture."""
    rows = experiments.read_metrics(runs[0].path)
    metric = "return_mean" if any("return_mean" in row for row in rows) else "eval/return_mean"  # from data alone
    try:
        curves = experiments.curves_of(runs, metric=metric)
        for name in ("curve.csv", "curve.png"):
            experiments.save_plot(curves, folder / name, metric=metric)
    except PalaestraError as error:
        missing.append(f"the curve: {error}")


def _film(learner: experiments.Learner, policies: Mapping[str, Policy], folder: Path, missing: list[str]) -> None:
    try:
        scenes = learner.play(policies, episodes=1, seed=0, window=False)
        experiments.film_scenes(scenes, folder / "replay.mp4", overlay=False)
    except Exception as error:  # an environment that cannot be drawn may raise anything, and a film is an extra
        missing.append(f"the film: {error}")
        (folder / "replay.mp4").unlink(missing_ok=True)


# -- the hub


def _require_repository(name: str) -> str:
    if not _REPOSITORY.fullmatch(name):
        raise ConfigError(
            f"{name!r} is neither a folder nor a model on the hub; give a folder, NAMESPACE/NAME, or "
            "zoo:ALGORITHM/ENVIRONMENT (`palaestra list policies`)"
        )
    return name


def _api() -> Any:
    hub = import_extra("huggingface_hub", "hub", "sharing on a model hub")
    return hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="palaestra")


@contextmanager
def _asking(what: str, repository: str) -> Iterator[None]:
    """Says what the hub refused; its client raises errors of many kinds."""
    try:
        yield
    except PalaestraError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{what} {repository} failed: {type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}. Is the "
            "name right, is there a token (HF_TOKEN, or `hf auth login`), and can the hub be reached?"
        ) from error


def _create(repository: str) -> str:
    """Makes a model on the hub if there is none yet, before any work is done for it; returns its address."""
    with _asking("pushing", repository):
        return str(_api().create_repo(repository, exist_ok=True))


def _push(folder: Path, repository: str) -> str:
    """One commit that makes the model on the hub what the folder is; returns its address."""
    api, hub = _api(), import_extra("huggingface_hub", "hub", "sharing on a model hub")
    local = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    with _asking("pushing", repository):
        old = [name for name in api.list_repo_files(repository) if name not in local and name != ".gitattributes"]
        operations = [hub.CommitOperationAdd(name, str(path)) for name, path in sorted(local.items())]
        operations += [hub.CommitOperationDelete(name) for name in old]
        return str(api.create_commit(repository, operations, commit_message="Share a policy").repo_url)


def _download(repository: str, folder: Path) -> None:
    """The files of a model on the hub, once it is known that all of them belong there."""
    api = _api()
    with _asking("pulling", repository):
        entries = [entry for entry in api.list_repo_tree(repository, recursive=True) if hasattr(entry, "size")]
        for entry in entries:
            _require_known(repository, entry.path, entry.size)
        if not any(entry.path == _MANIFEST for entry in entries):
            raise CheckpointError(f"{repository} has no {_MANIFEST}, so it is no policy that palaestra shared")
        for entry in entries:
            api.hf_hub_download(repository, entry.path, local_dir=folder)
