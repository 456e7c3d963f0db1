"""Choice of the precision of matrix multiplications on a device, by measurement."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor

from seq2seq.errors import UserError
from seq2seq.machine.devices import describe_device

Precision = Literal["fp32", "fp16", "bf16"]

DTYPES: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
"""Data type of matrix multiplications. In training, weights and optimizer states are in fp32."""
MIN_SPEED_UP = 1.2
"""Minimum speed-up over fp32 to choose half precision. A CPU with bf16 instructions is at least
twice as fast as in fp32; a CPU without them can be 75 times slower."""
MIN_BF16_SPEED = 0.5
"""Speed relative to fp16 below which a GPU only emulates bf16."""


def resolve_precision(
    precision: Precision | Literal["auto"], device: torch.device, key: str = "training.precision"
) -> Precision:
    """Return the precision of matrix multiplications on a device.

    auto: bf16 if it is measured to be faster than fp32; else, on a GPU, fp16 if it is faster.
    key: key of the recipe, for errors. Raises UserError if the device lacks the precision.
    """
    on_cpu = device.type == "cpu"
    if precision != "auto":
        if not (on_cpu or precision == "fp32" or single_thread_flops(device, precision)):
            raise UserError(
                f"{key}={precision}: {describe_device(device)} does not support it; use {key}=auto"
            )
        return precision
    kinds: tuple[Precision, ...] = ("fp32", "bf16") if on_cpu else ("fp32", "bf16", "fp16")
    flops = {kind: single_thread_flops(device, kind) for kind in kinds}
    bf16, fp16 = flops["bf16"], flops.get("fp16", 0.0)
    if bf16 >= max(MIN_SPEED_UP * flops["fp32"], MIN_BF16_SPEED * fp16):
        return "bf16"
    return "fp16" if fp16 >= MIN_SPEED_UP * flops["fp32"] else "fp32"


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the data type of matrix multiplications of `x`: autocast's, if enabled."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if _autocast_enabled(device) else x.dtype


def no_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Return a context manager that disables autocast on the device of `x`, if it is enabled."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if _autocast_enabled(device) else nullcontext()


def _autocast_enabled(device: str) -> bool:
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def single_thread_flops(device: torch.device, precision: Precision) -> float:
    """Measure the FLOP/s of matrix multiplication; 0 if the precision is not supported.

    Uses a single thread: with several, other programs on the cores would distort the result.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        # Small on a CPU, since emulated bf16 reaches about 1 GFLOP/s.
        return matmul_flops(device, DTYPES[precision], 256 if device.type == "cpu" else 4096)
    except (RuntimeError, TypeError):
        return 0.0
    finally:
        torch.set_num_threads(threads)


def matmul_flops(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """Return the FLOP/s of the fastest of several matrix multiplications.

    Slower ones may include kernel selection, or compete with other programs for the cores.
    """
    synchronize = torch.accelerator.synchronize if device.type != "cpu" else lambda: None
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    seconds = []
    for _ in range(6):
        synchronize()
        start = time.perf_counter()
        a @ b
        synchronize()
        seconds.append(time.perf_counter() - start)
    return 2.0 * size**3 / min(seconds)
