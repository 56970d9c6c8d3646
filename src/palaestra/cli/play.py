"""`palaestra play`: watch a policy, or film it where there is no screen."""

from __future__ import annotations

import dataclasses
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palaestra.cli.options import parse, positional
from palaestra.core import ConfigError, MissingExtraError, RunSeeds, StepType
from palaestra.envs import Environment, create_environment
from palaestra.experiments import ExperimentConfig, find_run
from palaestra.policies import Phase, Policy, load_policy

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
    root: str = "runs"
    """Where runs are."""


def play(arguments: list[str]) -> int:
    """Shows the policy of a run.

    Args:
        arguments: what was typed after the verb.
    """
    (name,), rest = positional(arguments, ("the run",), "palaestra play RUN [--episodes N] [--output FILE]")
    options = parse(PlayOptions, rest, prog="palaestra play RUN")
    if options.output is not None and Path(options.output).suffix not in (".mp4", ".gif"):
        raise ConfigError(f"--output is {options.output!r}; give a file that ends with .mp4 or .gif")
    directory = find_run(name, options.root)
    policy = load_policy(directory.path / "policy")
    screen = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or sys.platform in ("darwin", "win32"))
    window = options.output is None and screen
    with _environment(directory.config, "human" if window else "rgb_array", options.seed) as env:
        frames, returns = _episodes(policy, env, options.episodes, film=not window)
    print(f"{len(returns)} episode(s), return {np.mean(returns):.1f}")
    if not window:
        path = Path(options.output or directory.path / "videos" / "play.mp4")
        _write(path, frames, options.fps)
        print(f"film        {path}")
    return 0


def _environment(config: ExperimentConfig, render_mode: str, seed: int) -> Environment:
    env = dataclasses.replace(config.env.for_evaluation(1, render_mode=render_mode), vectorization="serial")
    try:
        return create_environment(env, lane_seeds=[RunSeeds(seed).integer("evaluation", 1000)])
    except MissingExtraError:
        raise
    except ConfigError as error:
        raise ConfigError(f"{config.env.name} cannot be drawn as {render_mode!r}: {error}") from error


def _episodes(policy: Policy, env: Environment, count: int, *, film: bool) -> tuple[list[np.ndarray], list[float]]:
    frames: list[np.ndarray] = []
    returns: list[float] = []
    try:
        with torch.inference_mode():
            time_step, state = env.reset(), policy.initial_state(1)
            total = 0.0
            while len(returns) < count:
                if film:
                    frames.append(env.render())
                step = policy.act(time_step, state, phase=Phase.EVAL, deterministic=True)
                time_step, state = env.step(policy.env_action(step.action)), step.state
                total += float(time_step.reward.sum())
                if int(time_step.step_type[0]) == StepType.LAST:
                    if film:
                        frames.append(env.render())
                    returns.append(total)
                    total = 0.0
    except Exception as error:
        if "pygame" in str(error):
            raise MissingExtraError("pygame", "video", "drawing this environment") from error
        raise
    return frames, returns


def _write(path: Path, frames: list[np.ndarray], fps: int) -> None:
    try:
        import imageio.v3 as imageio
    except ImportError as error:
        raise MissingExtraError("imageio", "video", "writing a film") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"loop": 0, "duration": 1000 / fps} if path.suffix == ".gif" else {"fps": fps}
    if path.suffix == ".mp4":
        options["macro_block_size"] = 2
    imageio.imwrite(path, np.stack(frames), **options)
