"""A first day as a user has it, every step from outside: a terminal, a browser, a Jupyter kernel, onnxruntime, HTTP."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import nbclient
import nbformat
import numpy as np
import onnxruntime
import pytest

from palaestra.policies import load_policy
from tests.faults.parts import Terminal, child_environment, command
from tools import browser

pytestmark = pytest.mark.slow

TRAIN = (
    "train",
    "ppo",
    "CartPole-v1",
    "--run.name",
    "first",
    "--env.num-envs",
    "8",
    "--trainer.total-env-steps",
    "30000",
)
ROBOT = '''
import gymnasium
import numpy as np

class Robot(gymnasium.Env):
    """Sees a camera and its joints; moves by a choice and a push."""

    def __init__(self, bug=""):
        boxes = {"camera": gymnasium.spaces.Box(0, 255, (32, 32, 3), np.uint8),
                 "joints": gymnasium.spaces.Box(-1, 1, (3,), np.float32)}
        self.observation_space = gymnasium.spaces.Dict(boxes)
        self.action_space = gymnasium.spaces.Dict({"mode": gymnasium.spaces.Discrete(2),
                                                   "push": gymnasium.spaces.Box(-1, 1, (2,), np.float32)})
        self.bug = bug

    def seen(self):
        joints = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return {"camera": np.full((32, 32, 3), self.count, np.uint8), "joints": joints}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.seen(), {}

    def step(self, action):
        self.count += 1
        reward = float("nan") if self.bug == "nan" and self.count == 5 else -float(np.square(action["push"]).sum())
        return self.seen(), reward, False, self.count == 20, {}
'''
SERVED = "(http://[^ ]+)"


@pytest.fixture(scope="module")
def day(tmp_path_factory, wait_until):
    """Where the user works, with a trained run: started on a terminal, broken off by Ctrl-C and continued."""
    folder = tmp_path_factory.mktemp("day")
    with Terminal(*TRAIN, folder=folder) as terminal:
        wait_until(lambda: terminal.ended() or "return" in terminal.read(), 300, what="the panel shows a return")
        terminal.type("\x03")
        wait_until(terminal.ended, 120, what="the end after Ctrl-C")
        screen = terminal.read()
    assert terminal.process.returncode == 130, screen
    assert "\x1b[" in screen  # drawn in place
    assert "palaestra resume" in screen
    command("resume", "last", folder=folder)
    return folder


def test_the_run_that_was_broken_off_has_learned(day):
    text = command("eval", "last", "--episodes", "20", "--json", folder=day)
    assert json.loads(text)["return_mean"] > 100
    info = json.loads((day / "runs" / "first" / "run.json").read_text())
    assert (info["status"], info["resume"]) == ("done", "exact")


def test_a_typing_error_is_answered_with_what_was_meant(day):
    text = command("train", "ppo", "CartPole-v1", "--algorithm.learning-rte", "1", folder=day, check=2)
    assert "did you mean --algorithm.learning-rate?" in text
    assert "did you mean 'report'" in command("reprt", folder=day, check=2)


def test_an_environment_of_ones_own_is_checked_and_trains_and_its_error_is_named(day):
    (day / "my_env.py").write_text(ROBOT)
    command("check-env", "my_env:Robot", folder=day)
    sizes = ("--trainer.total-env-steps", "400", "--algorithm.unroll-length", "50", "--env.num-envs", "2")
    text = command("train", "ppo", "my_env:Robot", *sizes, "--dry-run", folder=day)
    assert "CNN" in text or "cnn" in text
    command("train", "ppo", "my_env:Robot", *sizes, folder=day)
    text = command("train", "ppo", "my_env:Robot", *sizes, "--env.kwargs", "bug", "nan", folder=day, check=4)
    assert "emitted reward = nan in episode 0" in text and "at step 5 with action" in text


BOXES = """
const frame = document.getElementById("page"), inside = () => frame.contentDocument;
while (!inside()?.querySelector("svg")) await new Promise((done) => setTimeout(done, 50));
const shown = (chart) => chart.getBoundingClientRect().width / chart.viewBox.baseVal.width;
const sizes = [...inside().querySelectorAll("svg")].map(shown);
const used = inside().documentElement.scrollWidth, there = frame.contentWindow.innerWidth;
return { used, there, scale: Math.min(...sizes) };"""


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.skipif(not shutil.which("chromium"), reason="no browser")
def test_the_report_fits_into_a_browser(day, width):
    command("report", "first", "--output", "report.html", folder=day)
    found = browser.ask(day, BOXES, body=browser.framed("/report.html", width), width=max(500, width))
    assert found["used"] <= found["there"] == width
    assert found["scale"] > 0.75, "texts of charts have 11 pixels at scale 1"


def test_a_notebook_shows_the_run(day):
    source = 'import palaestra\npalaestra.train("ppo", "CartPole-v1", trainer__total_env_steps=1000, run__name="cell")'
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(day)}})
    client.execute(env=child_environment())
    (html,) = [
        output.data["text/html"] for output in notebook.cells[0].outputs if "text/html" in output.get("data", {})
    ]
    assert "<table" in html and "<svg" in html


def test_the_policy_leaves_as_a_program_that_needs_none_of_us(day):
    command("export", "first", "--format", "onnx", "--output", "out", folder=day)
    seen = np.random.default_rng(0).normal(0, 0.05, (50, 4)).astype(np.float32)
    program = (
        "import sys, json, numpy as np, onnxruntime; sys.modules['palaestra'] = sys.modules['torch'] = None; "
        "seen = np.array(json.loads(sys.argv[1]), np.float32); "
        "print(onnxruntime.InferenceSession('out/policy.onnx').run(None, {'observation': seen})[0].tolist())"
    )
    assert onnxruntime.get_available_providers()
    found = subprocess.run(
        [sys.executable, "-c", program, json.dumps(seen.tolist())],
        cwd=day,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert json.loads(found.stdout) == load_policy(day / "runs" / "first" / "policy")(seen).tolist()


def test_the_policy_answers_over_http_until_it_is_asked_to_end(day, wait_until):
    with Terminal("serve", "first", "--port", "0", folder=day) as terminal:
        wait_until(lambda: terminal.ended() or re.search(SERVED, terminal.read()), 120, what="the address")
        url = re.search(SERVED, terminal.read())[1].strip("\r\n")
        with httpx.Client(base_url=url, timeout=30) as client:
            assert client.get("/health").status_code == 200
            answer = client.post("/act", json={"observation": [0.0, 0.0, 0.1, 0.0]})
            assert answer.status_code == 200, answer.text
            assert client.post("/act", json={"observation": [0.0]}).status_code == 400
        terminal.process.terminate()
        wait_until(terminal.ended, 60, what="the end after SIGTERM")
    assert terminal.process.returncode in (0, 143)


def test_what_is_left_of_the_day(day):
    """Curves, films, sharing, statistics, diagnosis, and a search."""
    command("plot", "first", "--output", "curve.png", folder=day)
    command("play", "first", "--episodes", "1", "--output", "film.mp4", folder=day)
    assert min(os.path.getsize(day / name) for name in ("curve.png", "film.mp4")) > 1000
    command("share", "first", "--output", "shared", folder=day)
    command("train", "ppo", "CartPole-v1", "--from", "shared", "--trainer.total-env-steps", "500", folder=day)
    assert "runs/first: " in command("diagnose", "first", folder=day, check=None)  # 1 where it finds something
    command("stats", "first", folder=day)
    assert "algorithm.learning_rate" in command("tune", "ppo", "CartPole-v1", "--dry-run", folder=day)
    assert Path(day / "runs" / "first" / "checkpoints").is_dir()
