"""Memory: allocator settings on CPUs, memory in use, and detection of out-of-memory errors."""

from __future__ import annotations

import ctypes
import sys

import psutil
import torch

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
"""Parameters of glibc's mallopt."""


def keep_freed_memory() -> None:
    """Let glibc reuse freed memory instead of returning it to the kernel.

    By default glibc returns large blocks immediately. The page faults of new blocks then take about
    a sixth of the time of an update. Does nothing without glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_TOP_PAD, 64 * 2**20)


def return_freed_memory() -> None:
    """Return freed memory to the kernel, after work that needed more memory than later work."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def out_of_memory(error: BaseException) -> bool:
    """Return whether an exception means out of memory. torch has no single class for it."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    phrases = ("allocate memory", "not enough memory", "out of memory", "bad_alloc")
    return isinstance(error, RuntimeError) and any(phrase in text for phrase in phrases)


def memory_in_use(device: torch.device) -> int:
    """Return the memory of this process in bytes: resident on a CPU, peak of tensors on a GPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return int(psutil.Process().memory_info().rss)
