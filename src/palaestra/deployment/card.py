"""The model card of a shared policy: what it is, what it reached and over which seeds, and how to get it.

It tells what was typed and set, but for what is of one machine.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from palaestra.core.errors import placeless, printable

__all__ = ["OF_A_MACHINE", "inside", "model_card", "public_changes", "typed"]

OF_A_MACHINE = {
    "run.directory": "runs",
    "run.name": None,
    "run.initial_policy": None,
    "run.loggers": (),
    "distributed.address": None,
}
"""Settings of one machine, and what they are for everybody."""
_ADDRESSES = ("--address", "--distributed.address")


def model_card(facts: Mapping[str, Any], files: list[str], name: str) -> str:
    """`README.md` with the front matter that model hubs read.

    Args:
        facts: of the manifest: see `share`.
        files: that lie beside it.
        name: of the folder, `NAMESPACE/NAME` on a hub, or `zoo:ALGORITHM/ENVIRONMENT`.

    Examples:
        >>> evaluation = {"return_mean": 9.5, "return_std": 0.5, "episodes": 20, "deterministic": True, "seed": 1000000}
        >>> facts = {"algorithm": "ppo", "environment": "Chain", "seed": 0, "env_steps": 96, "evaluation": evaluation}
        >>> facts |= {"seeds": None, "command": "palaestra train ppo Chain", "versions": {}, "weights_sha256": {}}
        >>> print(model_card(facts, [], "chain").splitlines()[1])
        library_name: palaestra
    """
    algorithm, env, evaluation = (facts[key] for key in ("algorithm", "environment", "evaluation"))
    reached = f"{evaluation['return_mean']:.2f} +/- {evaluation['return_std']:.2f}"
    metric = {"type": "mean_reward", "name": "mean_reward", "value": reached, "verified": False}
    result = {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"type": env, "name": env},
        "metrics": [metric],
    }
    front = {
        "library_name": "palaestra",
        "tags": ["reinforcement-learning", "deep-reinforcement-learning", "palaestra", algorithm, env],
        "model-index": [{"name": f"{algorithm}-{env}", "results": [result]}],
    }
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---",
        f"# {algorithm} on {env}",
        "A policy trained with Palaestra. The folder holds numbers and text alone: no pickle, no code.",
        _results(facts),
        *(["![learning curve](curve.png)"] if "curve.png" in files else []),
        *(["[One episode as a film](replay.mp4)"] if "replay.mp4" in files else []),
        _use(name, facts["weights_sha256"], facts.get("wrappers") or ()),
        _origin(facts),
    ]
    return printable("\n\n".join(parts)) + "\n"


def inside(wrappers: Sequence[str]) -> str:
    """What has to be said of a policy that learned inside wrappers.

    Args:
        wrappers: the innermost first; at least one.
    """
    names = printable(", ".join(wrappers))
    return f"observations and actions are those of the environment inside {names}: apply them yourself"


def public_changes(overrides: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Settings that resumes have changed, without those of one machine.

    Args:
        overrides: as a run's records have them.
    """
    kept: list[dict[str, Any]] = []
    for entry in overrides:
        changes = {path: placeless(one) for path, one in entry["changes"].items() if path not in OF_A_MACHINE}
        kept.append({"env_steps": entry["env_steps"], "changes": changes})
    return kept


def typed(arguments: Sequence[str]) -> str:
    """A command as it was typed; the program without its folder, for that is of one machine.

    Args:
        arguments: the program and what followed.
    """
    program, *rest = [str(word) for word in arguments] or ["palaestra"]
    name = "palaestra" if Path(program).name in ("palaestra", "__main__.py") else Path(program).name
    words = [placeless(word) for word in rest]
    for number, word in enumerate(words):
        option, equals, _ = word.partition("=")
        if option in _ADDRESSES and equals:
            words[number] = f"{option}=ADDRESS"
        elif option in _ADDRESSES and number + 1 < len(words):
            words[number + 1] = "ADDRESS"
    return shlex.join([name, *words])


def _unit(facts: Mapping[str, Any]) -> str:
    return "updates" if facts.get("unit") == "updates" else "env steps"


def _results(facts: Mapping[str, Any]) -> str:
    evaluation, seeds = facts["evaluation"], facts["seeds"]
    kind = "deterministic" if evaluation["deterministic"] else "stochastic"
    text = (
        f"## Results\n\nThe best policy of a run of {facts['env_steps']:,} {_unit(facts)} (seed {facts['seed']}): "
        f"**{evaluation['return_mean']:.2f} ± {evaluation['return_std']:.2f}** (mean and standard deviation of "
        f"{evaluation['episodes']} episodes, {kind}, none of those by which it was chosen)."
    )
    if random := facts.get("random"):
        (low, high), (lowest, highest) = evaluation["return_ci95"], random["return_ci95"]
        text += (
            f" 95% interval of the mean: {low:.2f} to {high:.2f}. Random actions: {random['return_mean']:.2f}, "
            f"{lowest:.2f} to {highest:.2f}, over {random['episodes']} episodes."
        )
    if strength := evaluation.get("elo_ci95"):
        text += f" Elo above random actions, 95% interval: {strength[0]:+.0f} to {strength[1]:+.0f}."
    if seeds is None:
        return f"{text}\n\nOne seed was trained, which says nothing about how much others differ."
    low, high = seeds["ci95"]
    rows = "\n".join(f"| {seed} | {value:.2f} |" for seed, value in seeds["return_mean"].items())
    return (
        f"{text}\n\nOver {len(seeds['return_mean'])} seeds: mean {seeds['mean']:.2f}, 95% interval "
        f"{low:.2f} to {high:.2f}. The policy here is of the seed with the best evaluation while it trained.\n\n"
        f"| seed | mean return |\n|---|---|\n{rows}"
    )


def _use(name: str, places: Iterable[str], wrappers: Sequence[str]) -> str:
    of_zoo = name.removeprefix("zoo:")
    folder = f"shared/{of_zoo.replace('/', '_') if of_zoo != name else name.rpartition('/')[2]}"
    loads = "\n".join(f'policy = palaestra.load_policy("{folder}/{place}")' for place in places)
    loads += f"\n# {inside(wrappers)}" if wrappers else ""
    return f"""\
## Use

```bash
pip install 'palaestra[hub]'
palaestra pull {shlex.quote(name if "/" in name else folder)}
palaestra play {shlex.quote(folder)}
palaestra eval {shlex.quote(folder)} --episodes 100
```

```python
import palaestra

{loads}
```"""


def _origin(facts: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    hashes = "\n".join(f"- `{name}`: `{value}`" for name, value in facts["weights_sha256"].items())
    changes = "\n".join(
        f"- after {one['env_steps']:,} {_unit(facts)}: `{path}` from `{old}` to `{new}`"
        for one in facts.get("overrides", ())
        for path, (old, new) in one["changes"].items()
    )
    revision = f", by revision {facts['revision']}" if facts.get("revision") else ""
    again = "has every setting: `palaestra train --config config.yaml` trains again."
    if changes:
        again = f"has the settings at its end, for these were changed on the way:\n\n{changes}"
    return f"""\
## Where it comes from

Trained with `{facts["command"]}`{revision}; `config.yaml` {again}

Versions: {versions}.

SHA-256 of the weights:

{hashes}"""
