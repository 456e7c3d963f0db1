"""How the process holds memory while it trains on a CPU."""

import ctypes
import os
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
"""Parameters of glibc's mallopt."""


def keep_freed_memory() -> None:
    """Let the next update reuse this one's memory instead of asking the kernel for it anew.

    glibc returns large blocks as soon as they are free, and every page of the next ones costs a
    fault: about a sixth of the time of an update. oneDNN, on the other hand, keeps up to 1,024
    compiled shapes, more memory than small models need. Does nothing where there is no glibc.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_TOP_PAD, 64 * 2**20)
