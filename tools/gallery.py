"""Puts into the site what the gallery runs: policies of the zoo as ONNX files, and two packages from npm.

python tools/gallery.py            # into site/, after `zensical build`; `make docs` does it
python tools/gallery.py measure    # also writes docs/gallery_table.md: returns in a browser beside Python's
"""

import base64
import hashlib
import json
import shlex
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium

import palaestra
from palaestra.deployment import check_shared
from palaestra.experiments import preset
from tools.browser import ask

ROOT = Path(__file__).resolve().parents[1]
ZOO, SITE, TABLE = ROOT / "zoo", ROOT / "site", ROOT / "docs/gallery_table.md"
RESULTS = ROOT / "benchmarks/learning/results"
PLACE = Path("assets/gallery")
ROBOTS = Path(gymnasium.__file__).parent / "envs/mujoco/assets"
MODELS = ("half_cheetah.xml", "hopper.xml")
EPISODES, SEED = 20, 0


@dataclass(frozen=True)
class Package:
    """Of npm, and what the gallery needs of it."""

    name: str
    version: str
    integrity: str
    """What it has to be, as npm's lock files write it."""
    source: str
    files: tuple[str, ...]
    place: str


PACKAGES = [
    Package(
        "onnxruntime-web",
        "1.30.0",
        "sha512-q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ==",
        "package/dist",
        ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"),
        "ort",
    ),
    Package(
        "@mujoco/mujoco",
        "3.14.0",
        "sha512-WPUYidu4Fx8+uM4hQv80SOA0ifpWGrsNJguKs8JBV8SCTxjKQ2/rqsh880nUH0/Vwa8vuefghvCQkkoed3bkUg==",
        "package",
        ("mujoco.js", "mujoco.wasm"),
        "mujoco",
    ),
]


@dataclass(frozen=True)
class Entry:
    """A policy of the gallery."""

    name: str
    """In the zoo."""
    world: str
    """Module in docs/assets/gallery/worlds/."""
    title: str
    steps_per_s: int
    """How fast it is shown."""


ENTRIES = [
    Entry("ppo/CartPole-v1", "cartpole", "Balance a pole", 50),
    Entry("ppo/CartPoleSwingUp", "swing_up", "Lift a pole and balance it", 12),
    Entry("ppo/Pendulum-v1", "pendulum", "Swing a pendulum up", 20),
    Entry("ppo/Acrobot-v1", "acrobot", "Swing two links above the line", 10),
    Entry("dqn/MountainCar-v0", "mountain_car", "Rock a car up a hill", 30),
    Entry("ppo/MountainCarContinuous-v0", "mountain_car_continuous", "Rock a car up a hill, by a force", 5),
    Entry("pqn/MinAtarBreakout", "minatar_breakout", "Break bricks", 10),
    Entry("pqn/MinAtarSpaceInvaders", "minatar_space_invaders", "Shoot aliens", 10),
    Entry("ppo/Catch", "catch", "Catch a ball", 6),
    Entry("ppo/Recall", "recall", "Remember a cue", 4),
    Entry("ppo/Hopper-v5", "hopper", "Hop forward on a leg", 125),
    Entry("ppo/HalfCheetah-v5", "half_cheetah", "Run", 20),
    Entry("ppo/connect_four_v3", "connect_four", "Connect four, against you", 1),
    Entry("ppo/tictactoe-v3", "tictactoe", "Tic-tac-toe, against you", 1),
    Entry("reinforce/CartPole-v1", "cartpole", "Balance a pole", 50),
    Entry("evolution_strategies/CartPole-v1", "cartpole", "Balance a pole", 50),
    Entry("crossq/Pendulum-v1", "pendulum", "Swing a pendulum up", 20),
    Entry("sac/MountainCarContinuous-v0", "mountain_car_continuous", "Rock a car up a hill, by a force", 5),
]


def build(site: Path = SITE) -> list[Entry]:
    """Everything that the page needs and that is not committed; returns the policies that there are.

    Args:
        site: the built documentation.
    """
    there = [entry for entry in ENTRIES if (ZOO / entry.name / "manifest.json").is_file()]
    (site / PLACE / "policies").mkdir(parents=True, exist_ok=True)
    listed = [put(entry, site / PLACE / "policies") for entry in there]
    (site / PLACE / "policies/policies.json").write_text(json.dumps(listed), encoding="utf-8")
    for package in PACKAGES:
        put_package(package, site / PLACE / package.place)
    for model in MODELS:
        shutil.copyfile(ROBOTS / model, site / PLACE / "mujoco" / model)
    return there


def put(entry: Entry, folder: Path) -> dict[str, Any]:
    """Exports a policy; what the page has to know of it."""
    facts, source, file = check_shared(ZOO / entry.name), ZOO / entry.name, entry.name.replace("/", "_")
    with tempfile.TemporaryDirectory() as temporary:
        made = palaestra.export(source, Path(temporary) / "onnx")
        inputs = made[0].manifest["inputs"]
        shutil.copyfile(made[0].path, folder / f"{file}.onnx")
    shutil.copyfile(source / "curve.png", folder / f"{file}.png")
    return {
        "name": entry.name,
        "world": entry.world,
        "title": entry.title,
        "steps_per_s": entry.steps_per_s,
        "file": f"{file}.onnx",
        "inputs": [{key: one[key] for key in ("name", "shape", "dtype")} for one in inputs],
        "receipt": {
            "reached": reached(facts),
            "command": facts["command"],
            "revision": facts["revision"],
            "weights_sha256": ", ".join(facts["weights_sha256"].values()),
            "curve": f"{file}.png",
            "row": row_of(facts, RESULTS / f"{file}.json"),
        },
    }


def row_of(facts: dict[str, Any], results: Path) -> str | None:
    """The row that `palaestra verify` trains as this policy was: the same preset and budget, and nothing else.

    Args:
        facts: of the policy.
        results: file of the row of its name; there need not be one.
    """
    row = json.loads(results.read_text(encoding="utf-8")).get("row") if results.is_file() else None
    if row is None or row["compile"] or row.get("settings"):
        return None
    own = ["palaestra", "train", row["algorithm"], row["env"], "--run.name"]
    same = shlex.split(facts["command"])[: len(own)] == own
    return results.stem if same and preset(*own[2:4]).trainer.total_env_steps == row["env_steps"] else None


def reached(facts: dict[str, Any]) -> str:
    """The result of a shared policy in a line."""
    evaluation, random = facts["evaluation"], facts["random"]
    if strength := evaluation.get("elo_ci95"):
        return f"Elo above random moves, 95% interval: {strength[0]:+.0f} to {strength[1]:+.0f}"
    low, high = evaluation["return_ci95"]
    episodes = evaluation["episodes"]
    mean = f"{evaluation['return_mean']:,.1f} ± {(high - low) / 2:,.1f} (95%, {episodes} episodes)"
    return f"{mean}; random actions {random['return_mean']:,.1f}"


def put_package(package: Package, folder: Path) -> None:
    """The files of a package that run in a browser."""
    cache, wanted = ROOT / ".cache/gallery", f"{package.name}@{package.version}"
    cache.mkdir(parents=True, exist_ok=True)
    archive = cache / f"{package.name.lstrip('@').replace('/', '-')}-{package.version}.tgz"
    if not archive.is_file():
        if shutil.which("npm") is None:
            sys.exit(f"the gallery needs {wanted}, which npm fetches: install Node.js, then `make docs` again")
        subprocess.run(["npm", "pack", wanted, "--silent", "--pack-destination", str(cache)], check=True, cwd=cache)
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if f"sha512-{digest}" != package.integrity:
        archive.unlink()
        sys.exit(f"{wanted} is not what it was when the gallery was written: sha512-{digest}")
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as packed:
        for name in package.files:
            member = packed.extractfile(f"{package.source}/{name}")
            assert member is not None, name
            (folder / name).write_bytes(member.read())


def in_browser(site: Path, entries: list[Entry], episodes: int = EPISODES) -> dict[str, dict[str, list[float]]]:
    """Returns and lengths of episodes in Chromium, by the names of the policies.

    Args:
        site: see `build`.
        entries: which policies.
        episodes: how many of each.
    """
    script = f"""
      const {{ loadPolicy }} = await import("/{PLACE}/policy.js"), {{ measure }} = await import("/{PLACE}/play.js");
      const policies = await (await fetch("/{PLACE}/policies/policies.json")).json(), found = {{}};
      for (const name of {json.dumps([entry.name for entry in entries])}) {{
        const entry = policies.find((one) => one.name === name);
        const world = await import(`/{PLACE}/worlds/${{entry.world}}.js`);
        const policy = await loadPolicy(entry.inputs, `/{PLACE}/policies/${{entry.file}}`);
        found[name] = await measure(world, policy, {episodes}, {SEED});
      }}
      return found;"""
    return ask(site, script, timeout_s=900)


def interval(returns: list[float]) -> tuple[float, float]:
    """Mean, and half of its 95% interval by the normal distribution, as evaluations have it."""
    return statistics.fmean(returns), 1.96 * statistics.stdev(returns) / len(returns) ** 0.5


def measure(site: Path) -> None:
    """Writes the table: every policy over as many episodes in a browser and in Python."""
    there, lines = build(site), []
    for name, found in in_browser(site, there).items():
        facts, (mean, half) = check_shared(ZOO / name), interval(found["returns"])
        if "elo_ci95" in facts["evaluation"]:
            won, lost = (sum(sign * value > 0 for value in found["returns"]) for sign in (1, -1))
            lines.append((name, f"{won} won, {lost} lost against random moves", reached(facts), ""))
            continue
        seed = facts["evaluation"]["seed"] + 1
        own, own_half = interval(palaestra.evaluate_run(ZOO / name, episodes=EPISODES, seed=seed).returns)
        within = abs(mean - own) <= (half**2 + own_half**2) ** 0.5 + 1e-9
        texts = (f"{mean:,.1f} ± {half:,.1f}", f"{own:,.1f} ± {own_half:,.1f}", "yes" if within else "no")
        lines.append((name, *texts))
    head = ("policy", "in a browser", "in Python", "the difference may be 0")
    rows = [" | ".join(line) for line in (head, ["---"] * len(head), *lines)]
    TABLE.write_text(TEXT + "".join(f"| {row} |\n" for row in rows), encoding="utf-8")
    print(TABLE.read_text(encoding="utf-8"))


TEXT = f"""\
# Policies in a browser beside Python

Mean returns over {EPISODES} episodes each with 95% intervals of the means, and whether that of the difference holds 0,
which one in twenty would not by chance. In a browser, headless Chromium, the policy is an ONNX file and its world a
module in JavaScript. Starts are drawn by other generators there, so the episodes differ; the same starts and actions
lead to the same observations (`tests/docs/test_gallery_worlds.py`), of robots but for rounding. Written by `python -m
tools.gallery measure`.

"""


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["measure"]):
        sys.exit(__doc__)
    (measure if sys.argv[1:] else build)(SITE)
