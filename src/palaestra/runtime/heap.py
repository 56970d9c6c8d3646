"""The C library's heap, where the tensors of a gradient step come from and go to."""

from __future__ import annotations

import ctypes
import platform

__all__ = ["keep_freed_memory"]

# Numbers of `mallopt` in glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 256 << 20
_OWN_MAPPING_BYTES = 32 << 20  # the largest that glibc itself would come to


def keep_freed_memory() -> bool:
    """Lets this process use the memory of freed tensors again instead of giving it back to the system.

    Every gradient step frees and allocates the same activations. By default glibc returns free memory at the end of the
    heap at once, and the system hands it out again page by page: up to several hundred faults of a microsecond in a
    step, as it happens to lie. From now on up to 256 MiB stay with the process; single blocks of 32 MiB or more still
    come and go as before. It cannot be undone, and a second call changes nothing.

    Returns:
        Whether the C library took the setting; others than glibc have none.

    Examples:
        >>> import platform
        >>> keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
        True
    """
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)) and bool(mallopt(_MMAP_THRESHOLD, _OWN_MAPPING_BYTES))
