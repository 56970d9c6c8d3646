#!/usr/bin/env bash
# Guess: equality of a joint's kind and its name in MuJoCo's enumeration is symmetric, and `x in (a, b)` asks no more than `==`.
# Seen with mujoco 4.0.0 (and 3.12.0; 3.11.0 has all of them true) and numpy 2.4.6: `jnt_type[0] == mjJNT_HINGE` is true,
# `mjJNT_HINGE == jnt_type[0]` is false, and so is `jnt_type[0] in (mjJNT_HINGE,)`, for `in` asks the item of the tuple first.
# Nothing is raised or warned of. gymnasium-robotics 1.4.2 asks by `in`: its Fetch tasks end in an assertion without words.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in 3.11.0 4.0.0; do
    python3 -m venv "$folder/$version"
    "$folder/$version/bin/pip" install --quiet --disable-pip-version-check "mujoco==$version" numpy==2.4.6
    "$folder/$version/bin/python" -W error - "$version" <<'PY'
import sys

import mujoco
import numpy as np

assert (mujoco.__version__, np.__version__) == (sys.argv[1], "2.4.6")
model = mujoco.MjModel.from_xml_string(
    '<mujoco><worldbody><body><joint type="hinge"/><geom size="1"/></body></worldbody></mujoco>'
)
kind, hinge = model.jnt_type[0], mujoco.mjtJoint.mjJNT_HINGE
found = [bool(kind == hinge), bool(hinge == kind), kind in (hinge,), bool(hinge == int(kind))]
print(f"mujoco {mujoco.__version__}: kind == hinge, hinge == kind, kind in (hinge,), hinge == int(kind):", *found)
assert found == ([True] * 4 if sys.argv[1] == "3.11.0" else [True, False, False, True])
PY
done
