"""Attention within packed sentences on a GPU: flash attention if available, else rows."""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from seq2seq.data.packing import TOKENS_ROUND, Packed
from seq2seq.model.dropout import Dropout
from seq2seq.model.positions import Heads
from seq2seq.model.rows import rows_of

logger = logging.getLogger(__name__)

Kernel = Callable[..., Tensor]
"""Attention kernel for concatenated sentences of different lengths; returns (N, H, K)."""


def attend(
    heads: Heads, query_tokens: Packed, key_tokens: Packed, *, causal: bool, dropout: Dropout
) -> Tensor:
    """Compute `attention.attend` on a GPU."""
    device, dtype, width = heads[0].device, heads[0].dtype, heads[0].shape[2]
    # The kernel does not support dropout.
    if not dropout.probability and (kernel := find_kernel(device, dtype, width)):
        sides = query_tokens, key_tokens
        offsets = (tokens.offsets for tokens in sides)
        longest = (max(tokens.longest, TOKENS_ROUND) for tokens in sides)  # or the padding
        return kernel(*heads, *offsets, *longest, causal=causal)
    rows, num_heads = rows_of(query_tokens, key_tokens, causal), heads[0].shape[1]
    layouts = rows.queries, rows.keys, rows.keys
    queries, keys, values = (
        layout.split(x.contiguous()).unflatten(0, (-1, num_heads))  # (B, H, L, K)
        for layout, x in zip(layouts, heads, strict=True)
    )
    is_causal = causal and query_tokens.is_grid
    mask = None if is_causal else rows.bias(queries.dtype)
    attended = F.scaled_dot_product_attention(
        queries, keys, values, mask, dropout.probability, is_causal=is_causal
    )
    return rows.queries.join(attended.flatten(0, 1), num_heads)


def varlen_kernel() -> Kernel:
    """Return torch's variable-length attention; raises ImportError before torch 2.10.

    Imported only for a GPU: the import takes seconds.
    """
    kernel = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    if "window_size" not in inspect.signature(kernel).parameters:  # torch 2.10
        return lambda *arguments, causal: kernel(*arguments, is_causal=causal)
    return lambda *arguments, causal: kernel(*arguments, window_size=(-1, 0 if causal else -1))


@cache
def find_kernel(device: torch.device, dtype: torch.dtype, width: int) -> Kernel | None:
    """Return the kernel if it supports a device, data type and head width, or None.

    It is tried forward and backward on two sentences. Logs a warning if it fails on CUDA.
    """
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return None
    try:
        kernel = varlen_kernel()
        with torch.inference_mode(False), torch.enable_grad():
            x = torch.ones(8, 1, width, device=device, dtype=dtype, requires_grad=True)
            offsets = torch.tensor([0, 3, 8], device=device, dtype=torch.int32)
            kernel(x, x, x, offsets, offsets, 8, 8, causal=True).sum().backward()
    except (ImportError, RuntimeError) as error:
        logger.warning(
            "flash attention is not available, so training is slower (%s); it needs torch 2.10 or "
            "newer and an Ampere GPU or newer",
            str(error).splitlines()[0],
        )
        return None
    return kernel
