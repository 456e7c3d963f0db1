"""Flash attention over packed sentences (Dao 2023), where torch and the GPU have it."""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from seq2seq.data.packing import Packed
from seq2seq.machine.precision import product_dtype

logger = logging.getLogger(__name__)


Kernel = Callable[..., Tensor]
"""Attention over sentences that follow each other, each by itself."""


@cache
def _kernel() -> Kernel | None:
    """Return torch's attention over sentences of different lengths, if this torch has it.

    Only when a GPU asks for it: to import it takes seconds.
    """
    try:
        kernel = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    except (ImportError, AttributeError):
        return None
    return kernel if "window_size" in inspect.signature(kernel).parameters else None


@cache
def _works(device: torch.device, width: int) -> bool:
    """Try it on two sentences, forward and backward: not every GPU and build can."""
    kernel = _kernel()
    if kernel is None:
        return False
    try:
        with torch.inference_mode(False), torch.enable_grad():
            x = torch.ones(8, 1, width, device=device, dtype=torch.bfloat16, requires_grad=True)
            offsets = torch.tensor([0, 3, 8], device=device, dtype=torch.int32)
            kernel(x, x, x, offsets, offsets, 8, 8, window_size=(-1, 0)).sum().backward()
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        logger.warning("flash attention does not work here, going on without: %s", reason)
        return False
    return True


def find_kernel(x: Tensor, width: int) -> Kernel | None:
    """Return the kernel for layers that read `x`, with heads of this width, if there is one."""
    if x.device.type == "cuda" and product_dtype(x) == torch.bfloat16 and _works(x.device, width):
        return _kernel()
    return None


def flash_attend(
    kernel: Kernel,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    own: Packed,
    other: Packed,
    *,
    causal: bool,
) -> Tensor:
    """softmax(Q K^T / sqrt(K)) V (equation 1), each sentence by itself: (N, H, K).

    queries: (N, H, K), packed as `own` is; keys, values: (M, H, K), packed as `other` is.
    """
    window = (-1, 0) if causal else (-1, -1)
    return kernel(
        queries, keys, values, own.offsets, other.offsets, own.longest, other.longest,
        window_size=window,
    )  # fmt: skip
