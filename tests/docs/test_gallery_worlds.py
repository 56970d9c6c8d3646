"""The worlds of the gallery in JavaScript are those of Python: the same starts and actions, the same observations."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from pettingzoo.classic.connect_four import connect_four
from pettingzoo.classic.tictactoe import tictactoe

from palaestra.envs import MinAtarBreakout, MinAtarSpaceInvaders
from palaestra.envs.tiny import CartPoleSwingUp, Catch, Recall

WORLDS = Path(__file__).resolve().parents[2] / "docs/assets/gallery/worlds"
TOLD = """
const told = async ({ world, numbers, state, actions }) => {
  const { begin, step, observe } = await import(`${folder}/${world}.js`);
  let now = state ?? begin(() => numbers.shift()), rows = [];
  const seen = () => Object.fromEntries(Object.entries(observe(now)).map(([name, value]) => [name, Array.from(value)]));
  const first = seen();
  for (const action of actions) {
    const { state, reward, over } = step(now, action, () => numbers.shift());
    now = state;
    rows.push({ ...seen(), reward, over });
    if (over) break;
  }
  return { first, rows };
};
"""
SCRIPT = f"""
const {{ folder, cases }} = JSON.parse(require("fs").readFileSync(0, "utf8"));
{TOLD}
Promise.all(cases.map(told)).then((results) => console.log(JSON.stringify(results)));
"""
Row = dict[str, Any]
STEPS = 160  # of an episode, unless it ends
EPISODES = 8
TOLERANCES = {"mountain_car_continuous": 1e-6, "float32": 1e-6}
"""Gymnasium's car computes in float32 and ours in float64 that is rounded once a step, which differ by 6e-8 a step;
other observations are float32 of the same numbers in float64, which differ by 6e-8 of them."""


def answers(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the modules in JavaScript say."""
    done = subprocess.run(
        ["node", "-e", SCRIPT],
        input=json.dumps({"folder": WORLDS.as_uri(), "cases": cases}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def of_gymnasium(name: str, names: tuple[str, ...]) -> Callable[[np.random.Generator], Iterator[Any]]:
    """A case, then the rows of Gymnasium's environment for it."""

    def play(random: np.random.Generator) -> Iterator[Any]:
        env: Any = gymnasium.make(name).unwrapped
        first, _ = env.reset(seed=int(random.integers(1000)))
        discrete = isinstance(env.action_space, gymnasium.spaces.Discrete)
        high = 3.0  # beyond the bounds, too; in 256ths, which float32 multiplies without rounding
        held = np.repeat(random.random(STEPS // 8), 8)  # held for a while, so that states are far from the start
        actions = [int(x * env.action_space.n) if discrete else [round(high * (2 * x - 1) * 256) / 256] for x in held]
        start = dict(zip(names, map(float, env.state), strict=True))
        yield {"state": start, "actions": actions}
        yield first
        for action in actions:
            observation, reward, over, _, _ = env.step(action if discrete else np.array(action, np.float32))
            yield {"observation": observation, "reward": float(reward), "over": over}
            if over:
                return

    return play


def of_robot(name: str) -> Callable[[np.random.Generator], Iterator[Any]]:
    """The same of a robot of MuJoCo, for 40 steps: contacts multiply differences of 1e-14, by a million in 100."""

    def play(random: np.random.Generator) -> Iterator[Any]:
        env: Any = gymnasium.make(name).unwrapped
        first, _ = env.reset(seed=int(random.integers(1000)))
        held = np.repeat(random.uniform(-1, 1, (5, env.model.nu)), 8, axis=0).astype(np.float32)
        data = env.data
        start = {"place": data.qpos.tolist(), "speed": data.qvel.tolist(), "warm": data.qacc_warmstart.tolist()}
        yield {"state": start, "actions": held.tolist()}
        yield first
        for action in held:
            observation, reward, over, _, _ = env.step(action)
            yield {"observation": observation, "reward": float(reward), "over": bool(over)}
            if over:
                return

    return play


def of_own(env: Any, state_of: Callable[[Any], dict[str, int]]) -> Callable[[np.random.Generator], Iterator[Any]]:
    """The same of a small environment whose first observation shows its state."""

    def play(random: np.random.Generator) -> Iterator[Any]:
        first, _ = env.reset(seed=int(random.integers(1000)))
        actions = random.integers(env.action_space.n, size=40).tolist()
        yield {"state": state_of(first), "actions": actions}
        yield first
        for action in actions:
            observation, reward, over, _, _ = env.step(action)
            yield {"observation": observation, "reward": reward, "over": over}
            if over:
                return

    return play


def of_tensors(kind: Any, dtype: torch.dtype, steps: int = STEPS) -> Callable[[np.random.Generator], Iterator[Any]]:
    """The same of an environment whose states are tensors; luck and rules are functions of them."""

    def play(random: np.random.Generator) -> Iterator[Any]:
        env = kind(1, lane_seeds=[0], max_episode_steps=1000)
        numbers = np.float32(random.random(env.num_random)).tolist()
        state = env.fresh(torch.tensor([numbers], dtype=dtype))
        discrete = hasattr(env.action_spec, "num")
        held = np.repeat(random.random(steps // 2), 2)
        actions = [int(x * env.action_spec.num) if discrete else [2.4 * x - 1.2] for x in held]
        yield {"numbers": numbers, "actions": actions}
        yield env.observe(state)[0].numpy()
        for action in actions:
            state, reward, over = env.transition(state, torch.tensor([action], dtype=None if discrete else dtype))
            yield {"observation": env.observe(state)[0].numpy(), "reward": float(reward), "over": bool(over)}
            if over:
                return

    return play


def of_players(make: Any) -> Callable[[np.random.Generator], Iterator[Any]]:
    """The same of a game of PettingZoo, by moves that are allowed."""

    def play(random: np.random.Generator) -> Iterator[Any]:
        env = make.raw_env()
        env.reset()
        first, rows, actions = env.observe(env.agent_selection), [], []
        while not any(env.terminations.values()):
            mover = env.agent_selection
            actions.append(int(random.choice(np.flatnonzero(env.observe(mover)["action_mask"]))))
            env.step(actions[-1])
            over = any(env.terminations.values())
            rows.append({**env.observe(env.agent_selection), "reward": max(0.0, env.rewards[mover]), "over": over})
        yield {"numbers": [], "actions": actions}
        yield first
        yield from rows

    return play


CAR = ("place", "speed")
PLAYS = {
    "cartpole": of_gymnasium("CartPole-v1", ("x", "speed", "angle", "turn")),
    "pendulum": of_gymnasium("Pendulum-v1", ("angle", "turn")),
    "acrobot": of_gymnasium("Acrobot-v1", ("angle1", "angle2", "turn1", "turn2")),
    "mountain_car": of_gymnasium("MountainCar-v0", CAR),
    "mountain_car_continuous": of_gymnasium("MountainCarContinuous-v0", CAR),
    "catch": of_own(Catch(), lambda seen: {"row": 0, "column": int(seen[:5].argmax()), "paddle": 2}),
    "recall": of_own(Recall(4, 16), lambda seen: {"cue": int(seen.argmax()), "steps": 0, "said": -1}),
    "swing_up": of_tensors(CartPoleSwingUp, torch.float64, 24),
    "minatar_breakout": of_tensors(MinAtarBreakout, torch.float32),
    "minatar_space_invaders": of_tensors(MinAtarSpaceInvaders, torch.float32),
    "connect_four": of_players(connect_four),
    "tictactoe": of_players(tictactoe),
}


ROBOTS = {
    "half_cheetah": of_robot("HalfCheetah-v5"),
    "hopper": of_robot("Hopper-v5"),
}


def compare(plays: dict[str, Any], ask: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> dict[str, int]:
    """Holds what `ask` says of cases against Python's rows of them; returns how many steps those were, by world."""
    all_rows, cases = [], []
    for world, play in plays.items():
        for seed in range(EPISODES):
            case, first, *rows = play(np.random.default_rng(seed))
            cases.append({"world": world, **case})
            all_rows.append((first, rows))
    steps = dict.fromkeys(plays, 0)
    for case, (first, rows), found in zip(cases, all_rows, ask(cases), strict=True):
        world, tolerance = case["world"], TOLERANCES.get(case["world"], TOLERANCES["float32"])
        expected = [first if isinstance(first, dict) else {"observation": first}, *rows]
        assert [row["over"] for row in found["rows"]] == [row["over"] for row in rows], world
        for name in rows[0].keys() - {"over"}:
            some = slice(name == "reward", -1 if name == "action_mask" else None)  # the last mask is nobody's
            theirs = [np.ravel(row[name]) for row in expected[some]]
            ours = [np.ravel(row[name]) for row in [found["first"], *found["rows"]][some]]
            np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance, err_msg=f"{world}: {name}")
        steps[world] += len(rows)
    return steps


@pytest.mark.skipif(shutil.which("node") is None, reason="the worlds are programs for browsers: needs node")
def test_the_same_actions_lead_to_the_same_observations():
    steps = compare(PLAYS, answers)
    assert min(steps.values()) >= 15 and sum(steps.values()) > 2000, steps
