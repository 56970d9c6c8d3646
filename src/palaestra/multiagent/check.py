"""`check_multi_agent_env`: plays an environment with random actions, and says which rules it keeps."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from palaestra.core import EnvError, NonFiniteError, PalaestraError, SpecError
from palaestra.envs import CheckReport, Finding
from palaestra.multiagent.acting import MappedPolicy
from palaestra.multiagent.env import MultiAgentEnv
from palaestra.multiagent.envs import MultiAgentEnvs, load_multi_agent_env
from palaestra.multiagent.mapping import AgentsConfig
from palaestra.multiagent.rules import step_digest
from palaestra.policies import Phase, RandomPolicy

__all__ = ["check_multi_agent_env"]


class _RandomRun(NamedTuple):
    """What a run with random actions showed."""

    digests: list[str]
    agents: set[str]
    ends: int
    state: dict[str, Any]


def check_multi_agent_env(env: str | Callable[[], MultiAgentEnv], *, steps: int = 500, seed: int = 0) -> CheckReport:
    """Plays with random actions that the masks allow and compares what is emitted with the contract of environments.

    Args:
        env: a name as `load_multi_agent_env` takes it, or a class or function that makes one.
        steps: steps of each of the runs that are compared.
        seed: of environment and actions.

    Returns:
        Findings, each with what was expected, what came and what to do.

    Examples:
        >>> from palaestra.multiagent import Meeting
        >>> check_multi_agent_env(Meeting, steps=30).ok
        True
    """
    name = env if isinstance(env, str) else getattr(env, "__name__", repr(env))
    make = functools.partial(load_multi_agent_env, env) if isinstance(env, str) else env
    findings: list[Finding] = []
    rule = "The environment can be made, and keeps the rules of steps"
    try:
        played = _play(make, steps, seed)
        findings.append(Finding(rule, True))
    except (SpecError, NonFiniteError, EnvError) as error:
        return CheckReport(
            name, [Finding(rule, False, "see `MultiAgentEnv` and `MultiAgentStep`", str(error), "see the message")]
        )
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        fix = "see the message" if isinstance(error, PalaestraError) else "let it be made without arguments"
        return CheckReport(name, [Finding(rule, False, "a MultiAgentEnv", got, fix)])
    seeded = "take all randomness from the seed that an episode begins with"
    again = _play(make, steps, seed).digests
    apart = next(
        (step for step, pair in enumerate(zip(played.digests, again, strict=True)) if pair[0] != pair[1]), None
    )
    findings.append(
        Finding("Equal seeds and actions give equal steps", apart is None, "", f"step {apart} differs", seeded)
    )
    findings.append(_replays(make, played.state, seeded))
    ended = f"none of {steps} steps was the last of an episode"
    findings.append(Finding("Episodes end", played.ends > 0, "", ended, "give it a time limit", level="warning"))
    with MultiAgentEnvs([make], lane_seeds=[seed]) as envs:
        idle = ", ".join(sorted(set(envs.agents) - played.agents))
    findings.append(
        Finding("Every agent acts", not idle, "", f"{idle} never did", "leave out who never acts", level="warning")
    )
    return CheckReport(name, findings)


def _play(make: Callable[[], MultiAgentEnv], steps: int, seed: int) -> _RandomRun:
    digests: list[str] = []
    agents: set[str] = set()
    ends = 0
    with MultiAgentEnvs([make], lane_seeds=[seed]) as envs:
        policy_specs = AgentsConfig(sharing="separate").policy_specs(envs.agents, teams=(), state_spec=None)
        mapped_policies = [
            MappedPolicy(RandomPolicy(spec.observation_spec, spec.action_spec), spec, 1, delayed=False)
            for spec in policy_specs.values()
        ]
        for number, mapped in enumerate(mapped_policies):
            mapped.policy.seed(seed + number)
        outcomes = envs.reset()
        for _ in range(steps):
            digests.append(step_digest(outcomes[0], envs.agents))
            agents |= set(outcomes[0].time_steps)
            ends += outcomes[0].over
            actions: list[dict[str, Any]] = [{}]
            with torch.inference_mode():
                for mapped in mapped_policies:
                    mapped.take(0, outcomes[0])
                    mapped.act(Phase.EVAL, actions=actions)
            outcomes = envs.step(actions)
        return _RandomRun(digests, agents, ends, envs.state_dict())


def _replays(make: Callable[[], MultiAgentEnv], state: dict[str, Any], fix: str) -> Finding:
    rule = "A running episode can be replayed, so that a run is resumed exactly"
    with MultiAgentEnvs([make], lane_seeds=[0]) as envs:
        try:
            envs.load_state_dict(state)
        except PalaestraError as error:
            return Finding(rule, False, "what was shown before", str(error), fix)
    return Finding(rule, True)
