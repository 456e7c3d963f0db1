"""Flash attention over packed sentences (Dao 2023), if torch and the GPU support it."""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from seq2seq.machine.precision import product_dtype

logger = logging.getLogger(__name__)


Kernel = Callable[..., Tensor]
"""softmax(Q K^T / sqrt(D/H)) V within each of several concatenated sentences: (N, H, K)."""


@cache
def varlen_kernel() -> Kernel | None:
    """Return torch's variable-length attention, if this version has it.

    Imported only for a GPU, since it takes seconds.
    """
    try:
        kernel = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    except (ImportError, AttributeError):
        return None
    return kernel if "window_size" in inspect.signature(kernel).parameters else None


@cache
def kernel_works(device: torch.device, width: int) -> bool:
    """Return whether the kernel runs here, forward and backward, on two sentences."""
    kernel = varlen_kernel()
    if kernel is None:
        return False
    try:
        with torch.inference_mode(False), torch.enable_grad():
            x = torch.ones(8, 1, width, device=device, dtype=torch.bfloat16, requires_grad=True)
            offsets = torch.tensor([0, 3, 8], device=device, dtype=torch.int32)
            kernel(x, x, x, offsets, offsets, 8, 8, window_size=(-1, 0)).sum().backward()
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        logger.warning("flash attention is not available here: %s", reason)
        return False
    return True


def find_kernel(x: Tensor, width: int) -> Kernel | None:
    """Return the kernel for input `x` and heads of this width, if there is one."""
    if (
        x.device.type == "cuda"
        and product_dtype(x) == torch.bfloat16
        and kernel_works(x.device, width)
    ):
        return varlen_kernel()
    return None
