"""Devices and their memory."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

CPUINFO = Path("/proc/cpuinfo")


def may_have_gpu() -> bool:
    """Return whether torch may find a GPU, without loading torch. False is certain."""
    build = version("torch").partition("+")[2]
    if build == "cpu":
        return False
    # A torch build for devices of another vendor may find one on any machine.
    if sys.platform != "linux" or (build and not build.startswith("cu")):
        return True
    return any(any(Path("/dev").glob(name)) for name in ("nvidia[0-9]*", "nvmap", "dxg"))


def default_device() -> str:
    """Return the name of the default device for translation."""
    if not may_have_gpu():
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def describe_device(device: torch.device) -> str:
    """Return the name of a GPU, or the cores, name and instruction set of a CPU.

    For example `2 x AMD EPYC (AVX512)`: the set that torch uses, which its variables can restrict.
    """
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    text = CPUINFO.read_text(encoding="utf-8") if CPUINFO.exists() else ""
    found = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    name = found[1] if found else platform.machine()
    return f"{os.cpu_count()} x {name} ({torch.backends.cpu.get_cpu_capability()})"


def to_device(x: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy an array to a device, without waiting for the copy."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(x)).to(device, non_blocking=True)


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
    if isinstance(error, MemoryError):
        return True
    text = str(error).lower()
    phrases = ("allocate memory", "not enough memory", "out of memory", "bad_alloc")
    return isinstance(error, RuntimeError) and any(phrase in text for phrase in phrases)


def memory_in_use(device: torch.device) -> int:
    """Return the memory of this process in bytes: resident on a CPU, peak of tensors on a GPU."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    return int(psutil.Process().memory_info().rss)
