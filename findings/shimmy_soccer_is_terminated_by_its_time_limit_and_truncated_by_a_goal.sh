#!/usr/bin/env bash
# Guess: Shimmy turns a last step of dm_env with discount 1 into truncated, and one with discount 0 into terminated; its
# wrapper of a single agent does, by a function that both wrappers could share.
# Seen with Shimmy 2.0.0 and dm-control 1.0.50: the wrapper of many agents says it the other way round. A game of soccer that
# its time limit stops (discount 1) is terminated, and one that a goal ends (discount 0) is truncated. Who adds the value of
# what follows where an episode is truncated, adds one after each goal, and none where the clock stopped a game.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check shimmy==2.0.0 dm-control==1.0.50 mujoco==3.17.0 \
  'gymnasium[mujoco]==1.4.0' pettingzoo==1.27.0 numpy==2.4.6
cd "$folder"
MUJOCO_GL=disabled "$folder/venv/bin/python" -W ignore - <<'PY'
from importlib.metadata import version

import numpy as np
from dm_control.locomotion.soccer import WalkerType
from shimmy import DmControlMultiAgentCompatibilityV0

assert (version("shimmy"), version("dm-control")) == ("2.0.0", "1.0.50")


def end_of(goal):
    """What the last step of a game says of a player: discount, terminated, truncated."""
    env = DmControlMultiAgentCompatibilityV0(
        team_size=1,
        time_limit=0.5,
        disable_walker_contacts=False,
        enable_field_box=True,
        terminate_on_goal=True,
        walker_type=WalkerType.BOXHEAD,
    )
    env.reset(seed=0)
    player = env.agents[0]
    actions = {agent: np.zeros(env.action_space(agent).shape) for agent in env.agents}
    if goal:
        task, physics = env.unwrapped._env.task, env.unwrapped._env.physics
        task.ball.set_pose(physics, (task.arena.home_goal.lower + task.arena.home_goal.upper) / 2)
    for _ in range(100):
        _, rewards, terminated, truncated, infos = env.step(actions)
        if terminated[player] or truncated[player]:
            print("reward", float(rewards[player]), end=" ")
            return float(infos[player]["timestep.discount"]), terminated[player], truncated[player]


limit = end_of(goal=False)
print("limit: discount, terminated, truncated:", limit)
goal = end_of(goal=True)
print("goal: discount, terminated, truncated:", goal)
assert limit == (1.0, True, False)
assert goal == (0.0, False, True)
PY
