"""`palaestra data`: data sets for offline training, and what they say of a policy."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Self

from palaestra import experiments
from palaestra.cli.options import EnvOptions, JsonOptions, RunOptions, counter
from palaestra.core import ConfigError, left_as_found, schedule_value
from palaestra.envs import EnvConfig
from palaestra.multiagent import AgentsConfig


@dataclass(frozen=True, kw_only=True)
class ChanceOptions(EnvOptions):
    """Options of `palaestra data collect random`."""

    steps: int = 10_000
    """Env steps, at least; several environments are stepped together."""
    seed: int = 0
    """Seed of the environments and of the policy's choices."""
    agents: AgentsConfig = field(default_factory=AgentsConfig)
    """Who acts by which policy, where chance acts for many agents: each policy has a folder of its own."""


@dataclass(frozen=True, kw_only=True)
class CollectOptions(ChanceOptions, RunOptions):
    """Options of `palaestra data collect`."""

    env: EnvConfig = field(default_factory=EnvConfig)
    """Environment; by default that of the run, one at a time, or one of each variant."""
    which: str = "best"
    """Which policy of a run: best (without epsilon and action noise), last, or the env steps of a checkpoint."""
    deterministic: bool = False
    """Take the most probable or most valuable actions, as `eval` does; else act as while collecting."""

    @classmethod
    def defaults(cls, arguments: Sequence[str], options: Mapping[str, list[str]]) -> Self:
        """Those of the run."""
        if not arguments[0]:
            return cls()
        config = experiments.find_run(arguments[0], (options.get("root") or [cls.root])[-1]).config
        env = config.env.for_evaluation(max(1, len(config.env.variants)))
        kept = replace(env, info=config.env.info, untransformed=config.env.untransformed)
        return cls(env=kept, agents=config.agents)


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


def _made(summary: experiments.DataSummary, options: JsonOptions, agents: AgentsConfig | None = None) -> int:
    follow = f"palaestra train ALGORITHM ENVIRONMENT --offline.data {shlex.quote(str(summary.path))}"
    if agents and agents.mapping:
        follow += f" --agents.mapping {shlex.join(word for pair in agents.mapping.items() for word in map(str, pair))}"
    elif agents and agents.sharing != "shared":
        follow += f" --agents.sharing {agents.sharing}"
    options.show(asdict(summary), f"data        {summary}\nnext        {follow}")
    return 0


def export(run: str, folder: str, options: RunOptions) -> int:
    """Writes the replay buffer of a run's newest checkpoint."""
    agents = experiments.find_run(run, options.root).config.agents
    return _made(experiments.export_data(run, folder, root=options.root), options, agents)


def collect_random(env: str, folder: str, options: ChanceOptions) -> int:
    """Lets chance act in an environment, and writes what it saw."""
    steps, seed, agents = options.steps, options.seed, options.agents
    return _made(experiments.collect_by_chance(options.env, agents, folder, steps=steps, seed=seed), options, agents)


@left_as_found()
def collect(name: str, folder: str, options: CollectOptions) -> int:
    """Lets the policy of a run act, and writes what it saw."""
    run = experiments.find_run(name, options.root)
    if options.agents != run.config.agents:
        raise ConfigError(f"who acts by which policy is settled in {run.path}; leave out --agents")
    learner, policies = experiments.policies_of_run(run, options.which)
    how = {"seed": options.seed, "deterministic": options.deterministic}
    return _made(learner.record(policies, options.env, folder, steps=options.steps, **how), options, options.agents)


@left_as_found()
def evaluate(name: str, folder: str, options: WorthOptions) -> int:
    """Says what recorded data tells of the policy of a run: the return it would have, with an interval."""
    run = experiments.find_run(name, options.root)
    _, policies = experiments.policies_of_run(run, options.which)
    if len(policies) > 1:
        raise ConfigError(f"{run.path} has the policies {', '.join(policies)}; data is evaluated for a run of one")
    own = getattr(run.config.algorithm, "gamma", None)
    gamma = options.gamma if options.gamma is not None else schedule_value(0.99 if own is None else own, 1.0)
    [policy] = policies.values()
    sizes = {"updates": options.updates, "members": options.members, "seed": options.seed}
    updated = counter(options.updates, "gradient steps")
    data = experiments.data_of(policy, folder, run.config.env)
    found = experiments.evaluate_offline(policy, data, gamma=gamma, updated=updated, **sizes)
    options.show(found.to_json(), f"worth       {found}")
    return 0


def minari(folder: str, dataset: str, options: JsonOptions) -> int:
    """Makes a Minari dataset on this machine of the complete episodes in a folder."""
    return _made(experiments.export_minari(folder, dataset), options)
