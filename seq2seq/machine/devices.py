"""Devices: the default one, found without loading torch, and copies to a device."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seq2seq.errors import UserError

if TYPE_CHECKING:
    import torch


def may_have_gpu() -> bool:
    """Return whether torch may find a GPU; False if there is none."""
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
    # Of builds for other devices than NVIDIA's, every machine may have one.
    others = build != "" and not build.startswith("cu")
    return sys.platform == "darwin" or others or any(any(Path("/dev").glob(x)) for x in devices)


def default_device() -> str:
    """Return the name of the device that translates unless another one is named."""
    if not may_have_gpu():
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def named_device(name: str) -> torch.device:
    """Return the device of a name; raises UserError if there is none."""
    import torch

    try:
        return torch.device(name)
    except RuntimeError:
        raise UserError(f"device={name!r} is none: name cpu, cuda, cuda:1 or mps") from None


def to_device(x: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy an array without waiting for the device."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(x)).to(device, non_blocking=True)
