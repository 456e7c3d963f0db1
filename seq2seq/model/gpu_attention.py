"""Attention within packed sentences on a GPU: torch's flash attention, or padded rows."""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from seq2seq.data.packing import TOKENS_ROUND, Packed
from seq2seq.model.dropout import Dropout
from seq2seq.model.positions import Heads

logger = logging.getLogger(__name__)

Kernel = Callable[..., Tensor]
"""softmax(Q K^T / sqrt(K)) V within each of several concatenated sentences: (N, H, K)."""


def attend(heads: Heads, own: Packed, other: Packed, *, causal: bool, dropout: Dropout) -> Tensor:
    """Compute `attention.attend` on a GPU."""
    device, dtype, width = heads[0].device, heads[0].dtype, heads[0].shape[2]
    # The kernel has no dropout.
    if not dropout.probability and (kernel := find_kernel(device, dtype, width)):
        longest = (max(packed.longest, TOKENS_ROUND) for packed in (own, other))  # or the padding
        return kernel(*heads, own.offsets, other.offsets, *longest, causal=causal)
    sides = rows_of(own), rows_of(other), rows_of(other)  # a row for each sentence, (B, H, L, K)
    queries, keys, values = (side.split(x) for side, x in zip(sides, heads, strict=True))
    # Behind a sentence there is only padding, which no token attends to in a causal row.
    mask = None if causal else rows_of(other).mask
    attended = F.scaled_dot_product_attention(
        queries, keys, values, mask, dropout.probability, is_causal=causal
    )
    return rows_of(own).join(attended)


class Rows:
    """Indices to convert between packed tokens and one row for each sentence."""

    def __init__(self, packed: Packed) -> None:
        self._grid = (len(packed), packed.longest)
        if packed.is_grid:
            self._tokens, self.mask = None, None
            return
        index, exists = packed.rows()
        self._tokens, self.mask = index.flatten(), exists[:, None, None]
        lens = packed.offsets.diff()
        # Padding reads any cell. With output_size, the host does not wait for the sum.
        numbers = torch.arange(len(lens), device=lens.device).clamp(max=len(packed) - 1)
        row = torch.repeat_interleave(numbers, lens, output_size=len(packed.ids))
        self._cells = row * packed.longest + packed.positions

    def split(self, x: Tensor) -> Tensor:
        """Gather packed tokens, (N, H, K), into rows, (B, H, L, K)."""
        rows = x if self._tokens is None else x.index_select(0, self._tokens)
        return rows.unflatten(0, self._grid).transpose(1, 2)

    def join(self, x: Tensor) -> Tensor:
        """Gather packed tokens, (N, H, K), from rows, (B, H, L, K)."""
        tokens = x.transpose(1, 2).flatten(0, 1)
        return tokens if self._tokens is None else tokens.index_select(0, self._cells)


_FOUND: WeakKeyDictionary[Packed, Rows] = WeakKeyDictionary()
"""The rows of the batches in use, for all layers of a pass."""


@torch.inference_mode(False)  # which would make tensors that training cannot use
def rows_of(packed: Packed) -> Rows:
    """Return the rows of packed sentences."""
    if packed not in _FOUND:
        _FOUND[packed] = Rows(packed)
    return _FOUND[packed]


@cache
def varlen_kernel() -> Kernel | None:
    """Return torch's variable-length attention, if this version has it.

    Imported only for a GPU, since it takes seconds.
    """
    try:
        kernel = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    except (ImportError, AttributeError):
        return None
    has_window = "window_size" in inspect.signature(kernel).parameters

    def attend_varlen(*arguments: Any, causal: bool) -> Tensor:
        if has_window:
            return kernel(*arguments, window_size=(-1, 0 if causal else -1))
        return kernel(*arguments, is_causal=causal)  # torch 2.10

    return attend_varlen


@cache
def find_kernel(device: torch.device, dtype: torch.dtype, width: int) -> Kernel | None:
    """Return the kernel if it runs on a device, in half precision, for heads of this width.

    Tried forward and backward on two sentences; a warning says why it does not run on CUDA.
    """
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return None
    kernel, reason = varlen_kernel(), f"torch {torch.__version__} does not have it"
    if kernel is not None:
        try:
            with torch.inference_mode(False), torch.enable_grad():
                x = torch.ones(8, 1, width, device=device, dtype=dtype, requires_grad=True)
                offsets = torch.tensor([0, 3, 8], device=device, dtype=torch.int32)
                kernel(x, x, x, offsets, offsets, 8, 8, causal=True).sum().backward()
            return kernel
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
    logger.warning(
        "no flash attention for packed sentences (%s): sentences are padded for attention, which "
        "is slower; it needs torch 2.10 and an Ampere GPU or newer",
        reason,
    )
    return None
