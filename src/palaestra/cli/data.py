"""`palaestra data`: data sets for offline training, and what they say of a policy."""

import shlex
import sys
from dataclasses import asdict, dataclass, field, replace

from palaestra import experiments
from palaestra.cli.options import JsonOptions, RunOptions, command, parse, positional
from palaestra.core import ConfigError, did_you_mean, schedule_value
from palaestra.envs import EnvConfig
from palaestra.multiagent import AgentsConfig

__all__ = ["data"]

_USAGE = """\
usage: palaestra data WHAT ...

  export RUN FOLDER                       the replay buffer of a run's newest checkpoint
  collect RUN FOLDER --steps N            the policy of a run acts
  collect random ENVIRONMENT FOLDER --steps N   chance acts
  evaluate RUN FOLDER                     what the data says the policy of a run is worth, with an interval
  minari FOLDER DATASET                   complete episodes as a Minari dataset on this machine

`palaestra data WHAT --help` has the options. Train with `--offline.data FOLDER`, or `--offline.data minari:DATASET`.
"""


@dataclass(frozen=True, kw_only=True)
class CollectOptions(RunOptions):
    """Options of `palaestra data collect`."""

    steps: int = 10_000
    """Env steps, at least; several environments are stepped together."""
    which: str = "best"
    """Which policy of a run: best (acts without exploration noise), last, or the env steps of a checkpoint."""
    seed: int = 0
    """Seed of the environments and of the policy's choices."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """Environment; by default that of the run, one at a time."""
    agents: AgentsConfig = field(default_factory=AgentsConfig)
    """Who acts by which policy, where chance acts for many agents: each policy has a folder of its own."""


@dataclass(frozen=True, kw_only=True)
class WorthOptions(RunOptions):
    """Options of `palaestra data evaluate`."""

    which: str = "best"
    """Which policy of the run: best, last, or the env steps of a checkpoint; it acts deterministically."""
    gamma: float | None = None
    """Discount, below 1; by default that of the run's algorithm."""
    updates: int = 10_000
    """Gradient steps."""
    members: int = 20
    """Of the bootstrap over episodes, which the interval comes from."""
    seed: int = 0
    """Seed of weights, minibatches and the bootstrap."""


def data(arguments: list[str]) -> int:
    """Makes data sets, or says what they tell of a policy.

    Args:
        arguments: what was typed after the verb.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(_USAGE)
        return 0 if arguments else 2
    what, *rest = arguments
    if what not in _WHAT:
        raise ConfigError(f"`palaestra data` has no {what!r}{did_you_mean(what, _WHAT)}")
    _WHAT[what](rest)
    return 0


def _made(summary: experiments.DataSummary, options: JsonOptions) -> None:
    follow = f"palaestra train ALGORITHM ENVIRONMENT --offline.data {shlex.quote(str(summary.path))}"
    options.show(asdict(summary), f"data        {summary}\nnext        {follow}")


def _export(arguments: list[str]) -> None:
    usage = "palaestra data export RUN FOLDER"
    (run, folder), options = command(RunOptions, arguments, usage, "the run", "the folder")
    _made(experiments.export_data(run, folder, root=options.root), options)


def _collect(arguments: list[str]) -> None:
    usage, chance = "palaestra data collect RUN|random ENVIRONMENT FOLDER [--steps N]", arguments[:1] == ["random"]
    names = ("random", "the environment", "the folder") if chance else ("the run", "the folder")
    (*who, folder), rest = positional(arguments, usage, *names)
    options = parse(CollectOptions, rest, usage)  # first for --root, which says where the environment is found
    if chance:
        options = parse(CollectOptions, rest, usage, default=replace(options, env=EnvConfig(name=who[1])))
        env, agents, steps, seed = options.env, options.agents, options.steps, options.seed
        _made(experiments.collect_by_chance(env, agents, folder, steps=steps, seed=seed), options)
        return
    run = experiments.find_run(who[0], options.root)
    own = {"env": run.config.env.for_evaluation(1), "agents": run.config.agents}
    options = parse(CollectOptions, rest, usage, default=replace(options, **own))
    if options.agents != run.config.agents:
        raise ConfigError(f"who acts by which policy is settled in {run.path}; leave out --agents")
    learner, policies = experiments.policies_of_run(run, options.which)
    _made(learner.record(policies, options.env, folder, steps=options.steps, seed=options.seed), options)


def _evaluate(arguments: list[str]) -> None:
    usage = "palaestra data evaluate RUN FOLDER [--gamma 0.99]"
    (name, folder), options = command(WorthOptions, arguments, usage, "the run", "the folder")
    run = experiments.find_run(name, options.root)
    _, policies = experiments.policies_of_run(run, options.which)
    if len(policies) > 1:
        raise ConfigError(f"{run.path} has the policies {', '.join(policies)}; data is evaluated for a run of one")
    own = getattr(run.config.algorithm, "gamma", None)
    gamma = options.gamma if options.gamma is not None else schedule_value(0.99 if own is None else own, 1.0)
    [policy] = policies.values()
    sizes = {"updates": options.updates, "members": options.members}
    found = experiments.evaluate_offline(policy, folder, gamma=gamma, seed=options.seed, **sizes)
    options.show(asdict(found), f"worth       {found}")


def _minari(arguments: list[str]) -> None:
    usage = "palaestra data minari FOLDER DATASET"
    (folder, dataset), options = command(JsonOptions, arguments, usage, "the folder", "the id of the dataset")
    _made(experiments.export_minari(folder, dataset), options)


_WHAT = {"export": _export, "collect": _collect, "evaluate": _evaluate, "minari": _minari}
"""The function of each kind."""
