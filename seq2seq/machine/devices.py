"""Devices: the default device, names of devices, and copies to a device."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seq2seq.errors import UserError

if TYPE_CHECKING:
    import torch

FEATURES = {
    "AVX2": ("avx2",),
    "AVX-512": ("avx512f",),
    "NEON": ("asimd",),
    "SVE": ("sve",),
    "bf16": ("avx512_bf16", "bf16"),
    "int8": ("avx512_vnni", "avx_vnni", "i8mm"),
    "AMX": ("amx_tile",),
}
"""Instruction sets for matrix multiplication, and their flags in /proc/cpuinfo."""
CPUINFO = Path("/proc/cpuinfo")
LIMITS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
"""Environment variables that restrict the instruction sets that torch and its libraries use."""


def may_have_gpu() -> bool:
    """Return whether torch may find a GPU, without loading torch. False is certain."""
    try:
        build = version("torch").partition("+")[2]
    except PackageNotFoundError:
        return False
    if build == "cpu":
        return False
    if sys.platform == "win32":
        driver = Path(os.environ.get("SYSTEMROOT", "C:/Windows"), "System32", "nvcuda.dll")
        return driver.exists() or bool(build)
    devices = ("nvidia[0-9]*", "nvmap", "dxg", "kfd", "accel*")
    # A torch build for devices of another vendor may find one on any machine.
    others = build != "" and not build.startswith("cu")
    return sys.platform == "darwin" or others or any(any(Path("/dev").glob(x)) for x in devices)


def default_device() -> str:
    """Return the name of the default device for translation."""
    if not may_have_gpu():
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def named_device(name: str) -> torch.device:
    """Return the device with this name. Raises UserError for an unknown name."""
    import torch

    try:
        return torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device {name!r}: use cpu, cuda, cuda:1 or mps") from None


def describe_device(device: torch.device) -> str:
    """Return the name of a GPU, or the name, cores and instruction sets of a CPU.

    For example `2 x AMD EPYC (AVX2, AVX-512, bf16, int8)`.
    """
    if device.type == "cuda":
        import torch

        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    name, features = platform.processor() or platform.machine(), ""
    if CPUINFO.exists():
        lines = [line.partition(":") for line in CPUINFO.read_text(encoding="utf-8").splitlines()]
        fields = {key.strip(): value.strip() for key, _, value in reversed(lines)}
        flags = set(fields.get("flags", fields.get("Features", "")).split())
        name = fields.get("model name", platform.machine())
        features = ", ".join(feature for feature, names in FEATURES.items() if flags & {*names})
    limits = " ".join(f"{name}={os.environ[name]}" for name in LIMITS if name in os.environ)
    details = "; ".join(filter(None, [features, limits]))
    return f"{os.cpu_count()} x {name}" + (f" ({details})" if details else "")


def to_device(x: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy an array to a device, without waiting for the copy."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(x)).to(device, non_blocking=True)
