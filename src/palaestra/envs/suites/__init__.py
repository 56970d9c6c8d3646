"""Families of environments, one file each. A file that is put here is found by the prefix of its names.

A suite is a module with `PREFIX`, and with one or both of:

- `single(name, kwargs, limit) -> Single`: one environment; a suite without it has pools only
- `native(name, num_envs, kwargs, limit) -> Native`: all lanes as one `VectorEnv`

`limit` is `env.max_episode_steps`: `None` for the environment's own, 0 for none.
"""

from palaestra.envs.suites.suite import *
