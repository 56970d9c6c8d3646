"""`palaestra play`: watch a policy, or film it where there is no screen."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palaestra.cli.frames import grid, labelled, write_film
from palaestra.cli.options import parse, positional
from palaestra.core import ConfigError, MissingExtraError, RunSeeds, StepType
from palaestra.envs import Environment, create_environment
from palaestra.experiments import (
    ExperimentConfig,
    RunDirectory,
    find_run,
    many_agents,
    policies_of_run,
    policy_of_run,
)
from palaestra.experiments.config import algorithm_class
from palaestra.experiments.evaluation import robot_of_run
from palaestra.experiments.robots import film_robot
from palaestra.multiagent import create_worlds, play_worlds
from palaestra.policies import Phase, Policy
from palaestra.robots import Robot

__all__ = ["play"]


@dataclass(frozen=True, kw_only=True)
class PlayOptions:
    """Options of `palaestra play`."""

    episodes: int = 1
    """How many episodes."""
    output: str | None = None
    """File to write, .mp4 or .gif; by default a window, or `videos/play.mp4` in the run without a screen."""
    fps: int = 30
    """Frames per second of the film."""
    seed: int = 0
    """Seed of the environment."""
    which: str = "best"
    """Which policy: best, last, or the env steps of a checkpoint."""
    overlay: bool = True
    """Write step, action, reward and return on the film."""
    grid: bool = False
    """Show the episodes side by side in one film."""
    json: bool = False
    """Print JSON."""
    root: str = "runs"
    """Where runs are."""


def play(arguments: list[str]) -> int:
    """Shows the policy of a run.

    Args:
        arguments: what was typed after the verb.
    """
    (name,), rest = positional(arguments, ("the run",), "palaestra play RUN [--episodes N] [--output FILE]")
    options = parse(PlayOptions, rest, prog="palaestra play RUN")
    for option in ("episodes", "fps"):
        if getattr(options, option) < 1:
            raise ConfigError(f"--{option} is {getattr(options, option)}; it must be at least 1")
    if options.output is not None and Path(options.output).suffix not in (".mp4", ".gif"):
        raise ConfigError(f"--output is {options.output!r}; give a file that ends with .mp4 or .gif")
    directory = find_run(name, options.root)
    many, robot = many_agents(directory.config), _is_robot(directory)
    screen = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or sys.platform in ("darwin", "win32"))
    window = options.output is None and not options.grid and screen and not many and not robot
    if not window:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame looks for a screen even where it draws a picture
    if many:
        episodes, returns = _worlds(directory, options)
    elif robot:
        made, policies = robot_of_run(directory, options.which)
        episodes, returns = film_robot(directory.config, made, policies, episodes=options.episodes, seed=options.seed)
    else:
        policy = policy_of_run(directory, options.which)
        with _environment(directory.config, "human" if window else "rgb_array", options.seed) as env:
            episodes, returns = _episodes(policy, env, options.episodes, film=not window, overlay=options.overlay)
    path = None
    if not window:
        frames = grid(episodes) if options.grid else [frame for episode in episodes for frame in episode]
        path = Path(options.output or directory.path / "videos" / ("grid.mp4" if options.grid else "play.mp4"))
        write_film(path, frames, options.fps)
    if options.json:
        print(json.dumps({"returns": returns, "film": None if path is None else str(path)}))
        return 0
    print(f"{len(returns)} episode(s), return {np.mean(returns):.1f}")
    if path is not None:
        print(f"film        {path}")
    return 0


def _is_robot(directory: RunDirectory) -> bool:
    return issubclass(algorithm_class(directory.config.algorithm_name), Robot)


def _environment(config: ExperimentConfig, render_mode: str, seed: int) -> Environment:
    env = dataclasses.replace(config.env.for_evaluation(1, render_mode=render_mode), vectorization="serial")
    try:
        return create_environment(env, lane_seeds=[RunSeeds(seed).integer("evaluation", 1000)])
    except MissingExtraError:
        raise
    except ConfigError as error:
        raise ConfigError(f"{config.env.name} cannot be drawn as {render_mode!r}: {error}") from error


def _worlds(directory: RunDirectory, options: PlayOptions) -> tuple[list[list[np.ndarray]], list[float]]:
    """The frames of each episode of a world with many agents, and the sum of what they earned."""
    agents, policies = policies_of_run(directory, options.which)
    drawn = {"render_mode": "rgb_array"} if directory.config.env.name.startswith("pettingzoo:") else {}
    env = directory.config.env.for_evaluation(1, **drawn)
    episodes: list[list[np.ndarray]] = [[]]
    returns: list[float] = []
    with create_worlds(env, lane_seeds=[RunSeeds(options.seed).integer("evaluation", 1000)]) as worlds:
        for ended in play_worlds(policies, worlds, agents.roles):
            frame, step = worlds.render(), len(episodes[-1])
            what = [f"the end, return {episode.episode_return:.4g}" for episode in ended]
            lines = [f"episode {len(episodes)}, step {step}", *what]
            episodes[-1].append(labelled(frame, lines) if options.overlay else frame)
            returns += [episode.episode_return for episode in ended]
            if len(returns) == options.episodes:
                break
            if ended:
                episodes.append([])
    return episodes, returns


def _episodes(
    policy: Policy, env: Environment, count: int, *, film: bool, overlay: bool
) -> tuple[list[list[np.ndarray]], list[float]]:
    """The frames of each episode, and its return."""
    episodes: list[list[np.ndarray]] = []
    returns: list[float] = []

    def draw(lines: list[str]) -> None:
        if film:
            frame = env.render()
            episodes[-1].append(labelled(frame, lines) if overlay else frame)

    try:
        with torch.inference_mode():
            time_step, state = env.reset(), policy.initial_state(1)
            while len(returns) < count:
                total, length = 0.0, 0
                episodes.append([])
                while int(time_step.step_type[0]) != StepType.LAST:
                    step = policy.act(time_step, state, phase=Phase.EVAL, deterministic=True)
                    action = policy.env_action(step.action)
                    reward = float(time_step.reward.sum())
                    draw(
                        [
                            f"episode {len(returns) + 1}, step {length}",
                            f"action {_short(action)}",
                            f"reward {reward:.3g}, return {total:.4g}",
                        ]
                    )
                    time_step, state = env.step(action), step.state
                    total, length = total + float(time_step.reward.sum()), length + 1
                draw([f"episode {len(returns) + 1}, step {length}", "", f"the end, return {total:.4g}"])
                returns.append(total)
                time_step = env.reset()
                state = policy.initial_state(1)
    except Exception as error:
        if "pygame" in str(error):
            raise MissingExtraError("pygame", "video", "drawing this environment") from error
        raise
    return episodes, returns


def _short(action: Any) -> str:
    """An action of one environment in a few characters."""
    if isinstance(action, torch.Tensor):
        values = action[0].flatten().tolist()
        return " ".join(f"{value:.3g}" for value in values[:6]) + (" ..." if len(values) > 6 else "")
    return " | ".join(f"{key} {_short(value)}" for key, value in action.items())
