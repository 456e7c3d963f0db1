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
"""The type of matrix products in training; weights, optimizer states and decoding are fp32."""
MIXED_PRECISION: dict[Precision, str] = {"fp32": "no", "bf16": "bf16"}
"""What Accelerate calls them."""
WORTHWHILE = 1.2
"""How many times as fast as fp32 products those in bf16 must be to be chosen. A processor with bf16
instructions is at least twice as fast, one without can be 75 times as slow."""


def resolve_precision(
    precision: Literal["auto", "fp32", "bf16"], device: torch.device
) -> Precision:
    """Return the precision of training on a device; `auto` is the faster one there."""
    if precision != "auto":
        return precision
    return "bf16" if _bf16_speedup(device) >= WORTHWHILE else "fp32"


def precision_of(accelerator: Accelerator) -> Precision:
    """Return the precision that an accelerator was made with."""
    return "bf16" if accelerator.mixed_precision == MIXED_PRECISION["bf16"] else "fp32"


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the type in which matrix products of `x` are computed: autocast's, where it is on."""
    device = x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype


def _bf16_speedup(device: torch.device) -> float:
    """Measure how many times as fast products in bf16 are; 0 where the device has none."""
    if device.type != "cpu" and not is_bf16_available():  # Accelerate would refuse it
        return 0.0
    # Small on a CPU: one that emulates bf16 multiplies a billion numbers a second. And with one
    # thread, since several may wait for each other while other programs run.
    size = 256 if device.type == "cpu" else 4096
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        fp32 = _matmul_flops(device, torch.float32, size)
        return _matmul_flops(device, torch.bfloat16, size) / fp32
    except (RuntimeError, TypeError):
        return 0.0
    finally:
        torch.set_num_threads(threads)


def peak_matmul_flops(device: torch.device, precision: Precision) -> float:
    """Measure how many floating-point operations a second large matrix products reach."""
    return _matmul_flops(device, DTYPES[precision], size=1024 if device.type == "cpu" else 8192)


def _matmul_flops(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """Return the operations a second of the fastest of some products.

    Slower ones also chose a kernel, or shared the processor with other programs.
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
    """Return the type in which sums lose the fewest digits: Apple's GPU has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()
