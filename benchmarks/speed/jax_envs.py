"""`python -m benchmarks.speed.jax_envs`: env steps per second of `jax:` beside the package's own loop, in turns.

Beside it is one compiled program of the package's step for all lanes, with its own automatic reset, called step by
step; actions are drawn at random in the program. Ours are drawn by PyTorch, and each step gives tensors, checked. A
package that is not installed is left out; what has a result is not measured again unless it is named, so a command
that was broken off goes on where it stopped.
"""

import argparse
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.record import provenance, publish, table, write_json
from benchmarks.speed.envs import RESULTS, Row, Step, measure
from palaestra.core import ConfigError, EnvError
from palaestra.envs.simulators.jax import JaxBatch

LANES = 256
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "gymnax": ("CartPole-v1", {}),
    "pgx": ("tic_tac_toe", {}),
    "navix": ("Navix-Empty-5x5-v0", {}),
    "xminigrid": ("MiniGrid-Empty-5x5", {}),
    "jumanji": ("Maze-v0", {}),
    "brax": ("inverted_pendulum", {"backend": "generalized"}),
    "playground": ("CartpoleBalance", {}),
    "craftax": ("Craftax-Classic-Symbolic-v1", {}),
}
Loop = tuple[Callable[[Any], Any], Callable[[Any, Any, Any], Any], Callable[[Any, Any], Any]]
"""Of all lanes: state of keys; the next state of keys, state and actions; actions of a key and a state."""


def ours(package: str) -> tuple[Step, Callable[[], None]]:
    """A batch, with actions that are allowed."""
    name, kwargs = TASKS[package]
    env = JaxBatch(f"{package}:{name}", LANES, lane_seeds=range(LANES), **kwargs)
    generator = torch.Generator().manual_seed(0)
    kept = [env.reset()]
    choices = getattr(env.action_spec, "num", None)

    def step(number: int) -> None:
        if choices is None:
            action = torch.rand(LANES, *env.action_spec.shape, generator=generator) * 2 - 1
        else:
            values = torch.rand(LANES, choices, generator=generator)
            mask = kept[0].observation.get("action_mask") if hasattr(kept[0].observation, "get") else None
            action = (values if mask is None else values + mask).argmax(1)
        kept[0] = env.step(action)

    return step, env.close


def own(package: str) -> tuple[Step, Callable[[], None]]:
    """The package's own loop."""
    import jax

    reset, step, act = globals()[f"_{package}"](*TASKS[package])

    @jax.jit
    def advance(key: Any, state: Any) -> tuple[Any, Any]:
        key, draw, steps = jax.random.split(key, 3)
        return key, step(jax.random.split(steps, LANES), state, act(draw, state))

    key = jax.random.PRNGKey(0)
    kept = [advance(key, jax.jit(reset)(jax.random.split(key, LANES)))]

    def one(number: int) -> None:
        kept[0] = jax.block_until_ready(advance(*kept[0]))

    return one, lambda: None


def _choices(count: int) -> Callable[[Any, Any], Any]:
    import jax

    return lambda key, state: jax.random.randint(key, (LANES,), 0, count)


def _allowed(mask: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    import jax

    return lambda key, state: jax.random.categorical(key, jax.numpy.where(mask(state), 0.0, -jax.numpy.inf))


def _pushes(size: int) -> Callable[[Any, Any], Any]:
    import jax

    return lambda key, state: jax.random.uniform(key, (LANES, size), minval=-1.0)


def _gymnax(name: str, kwargs: dict[str, Any]) -> Loop:
    import jax

    env, params = importlib.import_module("gymnax").make(name)
    return (
        jax.vmap(lambda key: env.reset(key, params)[1]),
        jax.vmap(lambda key, state, action: env.step(key, state, action, params)[1]),
        _choices(env.num_actions),
    )


def _craftax(name: str, kwargs: dict[str, Any]) -> Loop:
    import jax

    env = importlib.import_module("craftax.craftax_env").make_craftax_env_from_name(name, auto_reset=True)
    params = env.default_params
    return (
        jax.vmap(lambda key: env.reset(key, params)[1]),
        jax.vmap(lambda key, state, action: env.step(key, state, action, params)[1]),
        _choices(env.action_space(params).n),
    )


def _pgx(name: str, kwargs: dict[str, Any]) -> Loop:
    import jax

    env = importlib.import_module("pgx").make(name)
    step = importlib.import_module("pgx.experimental.wrappers").auto_reset(env.step, env.init)
    return (
        jax.vmap(env.init),
        jax.vmap(lambda key, state, action: step(state, action, key)),
        _allowed(lambda state: state.legal_action_mask),
    )


def _navix(name: str, kwargs: dict[str, Any]) -> Loop:
    import jax

    env = importlib.import_module("navix").make(name)
    return (
        jax.vmap(env.reset),
        jax.vmap(lambda key, state, action: env.step(state, action)),
        _choices(int(np.asarray(env.action_space.maximum)) + 1),
    )


def _xminigrid(name: str, kwargs: dict[str, Any]) -> Loop:
    import jax

    env, params = importlib.import_module("xminigrid").make(name)
    env = importlib.import_module("xminigrid.wrappers").GymAutoResetWrapper(env)
    return (
        jax.vmap(lambda key: env.reset(params, key)),
        jax.vmap(lambda key, state, action: env.step(params, state, action)),
        _choices(env.num_actions(params)),
    )


def _jumanji(name: str, kwargs: dict[str, Any]) -> Loop:
    jumanji = importlib.import_module("jumanji")
    env = importlib.import_module("jumanji.wrappers").VmapAutoResetWrapper(jumanji.make(name))
    return (
        env.reset,
        lambda keys, state, action: env.step(state[0], action),
        _allowed(lambda state: state[1].observation.action_mask),
    )


def _brax(name: str, kwargs: dict[str, Any]) -> Loop:
    env = importlib.import_module("brax.envs").create(
        name, episode_length=1000, auto_reset=True, batch_size=None, **kwargs
    )
    wrapped = importlib.import_module("brax.envs.wrappers.training").VmapWrapper(env)
    return wrapped.reset, lambda keys, state, action: wrapped.step(state, action), _pushes(env.action_size)


def _playground(name: str, kwargs: dict[str, Any]) -> Loop:
    package = importlib.import_module("mujoco_playground")
    env = package.registry.load(name, config_overrides={"impl": "jax"})
    wrapped = importlib.import_module("mujoco_playground").wrapper.wrap_for_brax_training(env, episode_length=1000)
    return wrapped.reset, lambda keys, state, action: wrapped.step(state, action), _pushes(env.action_size)


def markdown(record: dict[str, Any]) -> str:
    rows = [
        [row["name"], str(row["num_envs"]), f"{row['ours']:,.0f}", f"{row['peer']:,.0f}", f"{row['value']:.2f}x"]
        for row in record["rows"]
    ]
    origins = sorted({f"`{one['command']}` on {one['date'][:10]}, JAX {one['jax']}" for one in record["rows"]})
    head = ["environment", "lanes", "`jax:`, env steps/s", "its own loop, env steps/s", "ours / its own"]
    return f"{table(head, rows)}\n\n{'; '.join(origins)}; {record['hardware']}.\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.jax_envs", description=__doc__)
    parser.add_argument("packages", nargs="*", help="which; by default all that have no result")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each side")
    parser.add_argument("--window", type=float, default=0.2, help="seconds of a turn")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where jax_envs.json and jax_envs.md are written")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    file = arguments.results / "jax_envs.json"
    before = json.loads(file.read_text())["rows"] if file.exists() else []
    rows: dict[str, Any] = {row["package"]: row for row in before}
    own_place = provenance("python -m benchmarks.speed.jax_envs")
    for package in arguments.packages or [name for name in TASKS if name not in rows]:
        name = f"jax:{package}:{TASKS[package][0]}"
        try:
            mine, theirs = ours(package), own(package)
        except (ConfigError, EnvError) as error:
            print(f"{package}: left out, {error}", flush=True)
            continue
        sides = Row(name, LANES, lambda made=mine: made, lambda made=theirs: made, 0.0)
        row = measure(sides, arguments.rounds, arguments.window)
        where = {"package": package, "command": own_place["command"], "date": own_place["date"]}
        rows[package] = {**row, **where, "jax": importlib.import_module("jax").__version__}
        record = {**own_place, "rows": [rows[one] for one in TASKS if one in rows]}
        record["hardware"] = f"{own_place['hardware']['cpu']}, {own_place['hardware']['cores']} cores"
        write_json(file, record)
        publish(arguments.results / "jax_envs.md", markdown(record), "docs/tutorials/packages.md", "jax")
        print(next(line for line in markdown(record).splitlines() if f" {name} " in line), flush=True)


if __name__ == "__main__":
    main()
