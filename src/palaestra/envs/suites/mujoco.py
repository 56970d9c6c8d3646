"""What MuJoCo says while it simulates, in the log."""

import logging
import re
from typing import Any

__all__ = ["log_warnings"]

_log = logging.getLogger(__name__)
_WARNED = set[str]()


def log_warnings(mujoco: Any) -> None:
    """Sends MuJoCo's warnings to the log, unless the program has a place for them already.

    MuJoCo itself would print, and write a file, for every environment that is made and every one that is unstable.

    Args:
        mujoco: the imported package.
    """
    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_warned)


def _warned(text: str) -> None:
    """Logs each kind of warning once, whatever times and places it names."""
    kind = re.sub(r"\d+", "", text)
    if kind not in _WARNED:
        _WARNED.add(kind)
        level = logging.DEBUG if "deprecated" in text else logging.WARNING  # what is deprecated is Gymnasium's model
        _log.log(level, "MuJoCo: %s", text)
