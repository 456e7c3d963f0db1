"""Devices: the default one, found without loading torch, and copies to a device."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch


def may_have_gpu() -> bool:
    """Return whether torch may have a GPU here; False if it cannot have one."""
    try:
        build = version("torch").partition("+")[2]
    except PackageNotFoundError:
        return False
    if build == "cpu":
        return False
    if sys.platform == "darwin" or build.startswith(("xpu", "rocm")):
        return True
    try:
        import ctranslate2
    except ImportError:
        return True
    return bool(ctranslate2.get_cuda_device_count() > 0)


def default_device() -> str:
    """Return the name of the device that translates unless another one is named."""
    if not may_have_gpu():
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def to_device(x: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy an array without waiting for the device."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(x)).to(device, non_blocking=True)
