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

logger = logging.getLogger(__name__)


@cache
def _kernel() -> Callable[..., Tensor] | None:
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


def has_flash(x: Tensor, width: int) -> bool:
    """Whether `flash_attend` can serve layers that read `x`, with heads of this width."""
    device, dtype = x.device.type, x.dtype
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    return device == "cuda" and dtype == torch.bfloat16 and _works(x.device, width)


def flash_attend(
    queries: Tensor, keys: Tensor, values: Tensor, own: Packed, other: Packed, *, causal: bool
) -> Tensor:
    """softmax(Q K^T / sqrt(K)) V (equation 1), each sentence by itself: (N, H, K).

    queries: (N, H, K), packed as `own` is; keys, values: (M, H, K), packed as `other` is.
    """
    kernel = _kernel()
    assert kernel is not None
    window = (-1, 0) if causal else (-1, -1)
    return kernel(
        queries, keys, values, own.offsets, other.offsets, own.longest, other.longest,
        window_size=window,
    )  # fmt: skip
