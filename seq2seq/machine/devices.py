"""Devices: the default device, names of devices, and copies to a device."""

from __future__ import annotations

import os
import platform
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
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
