"""The precision of matrix products on a device, chosen by measurement."""

from __future__ import annotations

import time
from typing import Literal

import torch
from accelerate import Accelerator
from accelerate.utils import is_bf16_available
from torch import Tensor

Precision = Literal["fp32", "bf16"]

DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Data type of matrix products in training; weights, optimizer states and decoding use fp32."""
MIXED_PRECISION: dict[Precision, str] = {"fp32": "no", "bf16": "bf16"}
"""Their names in Accelerate."""
WORTHWHILE = 1.2
"""Speed-up over fp32 at which bf16 is chosen. With bf16 instructions a processor is at least twice
as fast as in fp32; without them it can be 75 times as slow."""


def resolve_precision(
    precision: Literal["auto", "fp32", "bf16"], device: torch.device
) -> Precision:
    """Return the precision of training on a device; `auto` selects the faster one."""
    if precision != "auto":
        return precision
    return "bf16" if _bf16_speedup(device) >= WORTHWHILE else "fp32"


def precision_of(accelerator: Accelerator) -> Precision:
    """Return the precision of an accelerator."""
    return "bf16" if accelerator.mixed_precision == MIXED_PRECISION["bf16"] else "fp32"


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the data type of matrix products of `x`: autocast's, if it is enabled."""
    device = x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype


def _bf16_speedup(device: torch.device) -> float:
    """Measure the speed-up of bf16 over fp32 products; 0 if the device does not support bf16."""
    if device.type != "cpu" and not is_bf16_available():  # Accelerate would raise
        return 0.0
    # Small on a CPU, since emulated bf16 reaches about 1 GFLOP/s. With one thread, since several
    # may wait for each other while other programs run.
    size = 256 if device.type == "cpu" else 4096
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        fp32 = matmul_flops(device, torch.float32, size)
        return matmul_flops(device, torch.bfloat16, size) / fp32
    except (RuntimeError, TypeError):
        return 0.0
    finally:
        torch.set_num_threads(threads)


def peak_matmul_flops(device: torch.device, precision: Precision) -> float:
    """Measure the FLOP/s of large matrix products; MFU is relative to this, not to a data sheet."""
    return matmul_flops(device, DTYPES[precision], size=1024 if device.type == "cpu" else 8192)


def matmul_flops(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """Return the FLOP/s of the fastest of several products.

    The others may include kernel selection, or other programs on the same cores.
    """
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best = float("inf")
    for _ in range(6):
        _wait(device)
        start = time.perf_counter()
        a @ b
        _wait(device)
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best


def widest_float(device: torch.device) -> torch.dtype:
    """Return the widest floating-point type of a device: Apple's GPU does not support float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()
