"""Name and features of the processor or GPU."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path

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
"""Instruction sets for matrix products, and their flags in /proc/cpuinfo."""
CPUINFO = Path("/proc/cpuinfo")
LIMITS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
"""Environment variables that restrict the instructions torch and its libraries use."""


def describe_device(device: torch.device) -> str:
    """Return the name of a GPU, or of a CPU with its cores, features and restrictions.

    For example `2 x AMD EPYC (AVX2, AVX-512, bf16, int8)`.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    name, features = processor_features()
    limits = [f"{variable}={os.environ[variable]}" for variable in LIMITS if variable in os.environ]
    details = "; ".join(filter(None, [", ".join(features), " ".join(limits)]))
    return f"{os.cpu_count()} x {name}" + (f" ({details})" if details else "")


@cache
def processor_features() -> tuple[str, list[str]]:
    """Return the processor's name and features, if the system reports them."""
    if CPUINFO.exists():
        lines = [line.partition(":") for line in CPUINFO.read_text(encoding="utf-8").splitlines()]
        fields = {key.strip(): value.strip() for key, _, value in reversed(lines)}
        flags = set(fields.get("flags", fields.get("Features", "")).split())
        name = fields.get("model name", platform.machine())
        return name, [feature for feature, names in FEATURES.items() if flags.intersection(names)]
    return (_apple_name() if sys.platform == "darwin" else platform.processor()), []


def _apple_name() -> str:
    try:
        found = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"],
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return platform.machine()
    return found.stdout.strip()
