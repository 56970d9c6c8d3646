"""Contracts as suites of tests: what the library asks of its own parts, for the owner of a package.

A suite is a class; a subclass says what is tested, and pytest runs it: `class TestMine(EnvironmentContract): ...`.
"""

import contextlib

with contextlib.suppress(ImportError):  # failures then show the values that were compared
    import pytest

    for _module in ("algorithms", "buffers", "environments"):
        pytest.register_assert_rewrite(f"{__name__}.{_module}")

from palaestra.testing.algorithms import *
from palaestra.testing.buffers import *
from palaestra.testing.environments import *
