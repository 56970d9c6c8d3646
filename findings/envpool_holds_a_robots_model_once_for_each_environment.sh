#!/usr/bin/env bash
# Guess: environments of one pool share the model of their robot, so that one more costs what a simulation's state does: well
# under a megabyte for a robot dog.
# Seen with envpool 1.2.5 and its robots' meshes: each environment of Go1JoystickFlatTerrain-v1 takes more than 50 MiB, so that
# 256 of them need about 15 GiB.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check envpool==1.2.5
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PY'
import gc
import os
from importlib.metadata import version

import envpool

assert version("envpool") == "1.2.5"


def resident_mib():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


pools = [envpool.make_gymnasium("Go1JoystickFlatTerrain-v1", num_envs=2)]  # libraries, and what is loaded once
pools[0].reset()
sizes = []
for count in (8, 24):
    before = resident_mib()
    pools.append(envpool.make_gymnasium("Go1JoystickFlatTerrain-v1", num_envs=count))
    pools[-1].reset()
    sizes.append(resident_mib() - before)
each = (sizes[1] - sizes[0]) / 16
print(f"8 environments {sizes[0]:.0f} MiB, 24 environments {sizes[1]:.0f} MiB: {each:.0f} MiB for one more")
assert 30 < each < 110
PY
