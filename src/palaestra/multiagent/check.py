"""`check_world`: plays a world with random actions, and says which rules it keeps."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from palaestra.core import EnvError, NonFiniteError, PalaestraError, SpecError
from palaestra.envs import CheckReport, Finding
from palaestra.multiagent.acting import Actor
from palaestra.multiagent.env import World
from palaestra.multiagent.envs import Worlds, load_world
from palaestra.multiagent.mapping import AgentsConfig
from palaestra.multiagent.rules import moment_digest
from palaestra.policies import Phase, RandomPolicy

__all__ = ["check_world"]


class _Played(NamedTuple):
    """What a run with random actions showed."""

    digests: list[str]
    agents: set[str]
    ends: int
    state: dict[str, Any]


def check_world(world: str | Callable[[], World], *, steps: int = 500, seed: int = 0) -> CheckReport:
    """Plays with random actions that the masks allow and compares what is emitted with the contract of worlds.

    Args:
        world: a name as `load_world` takes it, or a class or function that makes one.
        steps: moments of each of the runs that are compared.
        seed: of world and actions.

    Returns:
        Findings, each with what was expected, what came and what to do.

    Examples:
        >>> from palaestra.multiagent import Meeting
        >>> check_world(Meeting, steps=30).ok
        True
    """
    name = world if isinstance(world, str) else getattr(world, "__name__", repr(world))
    make = functools.partial(load_world, world) if isinstance(world, str) else world
    findings: list[Finding] = []
    rule = "The world can be made, and keeps the rules of moments"
    try:
        played = _play(make, steps, seed)
        findings.append(Finding(rule, True))
    except (SpecError, NonFiniteError, EnvError) as error:
        return CheckReport(name, [Finding(rule, False, "see `World` and `Moment`", str(error), "see the message")])
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        fix = "see the message" if isinstance(error, PalaestraError) else "let it be made without arguments"
        return CheckReport(name, [Finding(rule, False, "a World", got, fix)])
    seeded = "take all randomness from the seed that an episode begins with"
    again = _play(make, steps, seed).digests
    apart = next(
        (step for step, pair in enumerate(zip(played.digests, again, strict=True)) if pair[0] != pair[1]), None
    )
    findings.append(
        Finding("Equal seeds and actions give equal moments", apart is None, "", f"moment {apart} differs", seeded)
    )
    findings.append(_replays(make, played.state, seeded))
    ended = f"none of {steps} moments was the last of an episode"
    findings.append(Finding("Episodes end", played.ends > 0, "", ended, "give it a time limit", level="warning"))
    with Worlds([make], lane_seeds=[seed]) as worlds:
        idle = ", ".join(sorted(set(worlds.agents) - played.agents))
    findings.append(
        Finding("Every agent acts", not idle, "", f"{idle} never did", "leave out who never acts", level="warning")
    )
    return CheckReport(name, findings)


def _play(make: Callable[[], World], steps: int, seed: int) -> _Played:
    digests: list[str] = []
    agents: set[str] = set()
    ends = 0
    with Worlds([make], lane_seeds=[seed]) as worlds:
        roles = AgentsConfig(sharing="separate").roles(worlds.agents, joint=(), state_spec=None)
        actors = [
            Actor(RandomPolicy(role.observation_spec, role.action_spec), role, 1, delayed=False)
            for role in roles.values()
        ]
        for number, actor in enumerate(actors):
            actor.policy.seed(seed + number)
        moments = worlds.reset()
        for _ in range(steps):
            digests.append(moment_digest(moments[0], worlds.agents))
            agents |= set(moments[0].time_steps)
            ends += moments[0].over
            actions: list[dict[str, Any]] = [{}]
            with torch.inference_mode():
                for actor in actors:
                    actor.take(0, moments[0])
                    actor.act(Phase.EVAL, actions=actions)
            moments = worlds.step(actions)
        return _Played(digests, agents, ends, worlds.state_dict())


def _replays(make: Callable[[], World], state: dict[str, Any], fix: str) -> Finding:
    rule = "A running episode can be replayed, so that a run is resumed exactly"
    with Worlds([make], lane_seeds=[0]) as worlds:
        try:
            worlds.load_state_dict(state)
        except PalaestraError as error:
            return Finding(rule, False, "what was shown before", str(error), fix)
    return Finding(rule, True)
