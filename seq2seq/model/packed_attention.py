"""Attention within packed sentences: flash attention on a GPU that has it, else in shared rows.

Rows are for batched matrix products. Several sentences share a row, and a bias on the scores
separates them: that is faster than one row per sentence. B is the number of rows and L the length
of a row: T for rows of queries, S for rows of keys.
"""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from seq2seq.data.batching import TOKENS_ROUND, Packed, round_up, row_lens
from seq2seq.machine.devices import to_device
from seq2seq.model.dropout import Dropout

ROWS_ROUND = 4
"""The number of rows is a multiple of this, so that few shapes occur."""
MAX_LEN_TO_ROUND = 128
"""Row length above which the number of rows is not rounded: an extra row would be too slow."""

logger = logging.getLogger(__name__)

Kernel = Callable[..., Tensor]
"""Attention kernel for concatenated sentences of different lengths; returns (N, H, K)."""


class PackedAttention:
    """Attention of a stack within packed sentences, in all layers of one forward pass.

    Each sentence of the queries attends to the sentence of equal index of the keys.
    """

    def __init__(
        self, queries: Packed, keys: Packed, dropout: Dropout, *, causal: bool = False
    ) -> None:
        """dropout: applied to the attention weights. causal: mask later positions."""
        self.queries, self.keys, self.dropout, self.causal = queries, keys, dropout, causal

    def __call__(self, *heads: Tensor) -> Tensor:
        """Return softmax(Q K^T / sqrt(d_k)) V (Vaswani et al. 2017, equation 1), (N, D).

        heads: queries, keys and values: (N, 3, H, K) in self-attention; else (N, 1, H, K) and
        (M, 2, H, K).
        """
        attend = self._on_cpu if heads[0].device.type == "cpu" else self._on_gpu
        return attend(heads).flatten(1)

    @cached_property
    def rows(self) -> Rows:
        """Made by the first layer, and only if a kernel does not make them unnecessary."""
        return Rows(self.queries, self.keys, causal=self.causal)

    def _on_cpu(self, heads: Sequence[Tensor]) -> Tensor:
        return _AttendInRows.apply(self.rows, self.dropout, *heads)

    def _on_gpu(self, heads: Sequence[Tensor]) -> Tensor:
        x = heads[0]
        # The kernel does not support dropout.
        if not self.dropout.probability and (kernel := find_kernel(x.device, x.dtype, x.shape[3])):
            sides = self.queries, self.keys
            longest = (max(side.longest, TOKENS_ROUND) for side in sides)  # or the padding
            parts = (part for x in heads for part in x.unbind(1))
            return kernel(*parts, *(side.offsets for side in sides), *longest, causal=self.causal)
        num_heads, is_causal = x.shape[2], self.causal and self.queries.is_grid
        queries, keys, values = (
            part.unflatten(0, (-1, num_heads)) for part in self.rows.split(heads)
        )
        bias = None if is_causal else self.rows.bias(x.dtype)
        attended = F.scaled_dot_product_attention(
            queries, keys, values, bias, self.dropout.probability, is_causal=is_causal
        )
        return self.rows.queries.join(attended.flatten(0, 1), num_heads)


class _AttendInRows(torch.autograd.Function):
    """Attention in rows, with its gradient: faster than torch's kernels for a CPU."""

    @staticmethod
    def forward(ctx: Any, rows: Rows, dropout: Dropout, *heads: Tensor) -> Tensor:
        _, _, ctx.num_heads, width = heads[0].shape
        ctx.rows, ctx.scale = rows, width**-0.5
        queries, keys, values = rows.split(heads)
        queries.mul_(ctx.scale)  # before the product: it could overflow fp16
        scores = torch.bmm(queries, keys.transpose(1, 2))
        scores.unflatten(0, (-1, ctx.num_heads)).add_(rows.bias(scores.dtype))
        # In fp32: torch's bf16 softmax is slow unless rows are a multiple of the vector length.
        acc_dtype = torch.promote_types(scores.dtype, torch.float32)
        probs = scores.softmax(dim=-1, dtype=acc_dtype).to(scores.dtype)
        factors = dropout.factors(probs) if dropout.probability else None
        ctx.save_for_backward(queries, keys, values, probs, factors)
        attended = torch.bmm(probs if factors is None else probs * factors, values)
        return rows.queries.join(attended, ctx.num_heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, probs, factors = ctx.saved_tensors
        [grad] = ctx.rows.queries.split(grad[:, None])
        dropped = probs if factors is None else probs * factors
        grad_values = torch.bmm(dropped.transpose(1, 2), grad)
        grad_probs = torch.bmm(grad, values.transpose(1, 2))
        if factors is not None:
            grad_probs.mul_(factors)
        grad_scores = torch._softmax_backward_data(grad_probs, probs, -1, probs.dtype)
        grad_queries = torch.bmm(grad_scores, keys).mul_(ctx.scale)
        grad_keys = torch.bmm(grad_scores.transpose(1, 2), queries)
        grads = ctx.rows.join((grad_queries, grad_keys, grad_values), ctx.num_heads)
        return None, None, *grads


class Rows:
    """Rows of queries and of keys: rows of equal index contain the same sentences."""

    def __init__(self, queries: Packed, keys: Packed, *, causal: bool) -> None:
        lens = np.stack([queries.lens, keys.lens], axis=1)
        lengths = [queries.longest, keys.longest]
        self._is_grid = queries.is_grid and keys.is_grid  # each sentence fills one row
        if self._is_grid:
            rows, columns, num_rows = np.arange(len(queries)), np.zeros_like(lens), len(queries)
        else:
            lengths = row_lens(lengths)
            rows, columns = first_fit(lens, lengths)
            num_rows = int(rows.max()) + 1
            # Queries and keys need an empty cell, for padding.
            num_rows += any(lens.sum(axis=0) == np.multiply(lengths, num_rows))
            if max(lengths) <= MAX_LEN_TO_ROUND:
                num_rows = round_up(num_rows, ROWS_ROUND)
        self.queries = self.keys = Layout(queries, rows, columns[:, 0], (num_rows, lengths[0]))
        if keys is not queries:
            self.keys = Layout(keys, rows, columns[:, 1], (num_rows, lengths[1]))
        self._causal = causal
        self._bias: Tensor | None = None

    def split(self, heads: Sequence[Tensor]) -> list[Tensor]:
        """Gather queries, keys and values, given as in `PackedAttention`, each (B*H, L, K)."""
        layouts = self.queries, self.keys  # equal in self-attention
        return [part for layout, x in zip(layouts, heads, strict=False) for part in layout.split(x)]

    def join(self, parts: Sequence[Tensor], num_heads: int) -> list[Tensor]:
        """Undo `split`."""
        queries, *others = (
            layout.join(part, num_heads)
            for layout, part in zip((self.queries, self.keys, self.keys), parts, strict=True)
        )
        if self.keys is self.queries:
            return [torch.stack([queries, *others], dim=1)]
        return [queries[:, None], torch.stack(others, dim=1)]

    def bias(self, dtype: torch.dtype) -> Tensor:
        """Return the bias of the scores, (B, 1, T, S) or (1, 1, T, S); all layers share it.

        It is 0 where a query may attend to a key, else a large negative number. For example, a
        causal row with the sentences `a b c` and `d e` and an empty cell (x: bias 0):

                   a  b  c  d  e  .
                a  x
                b  x  x
                c  x  x  x
                d           x
                e           x  x
                .                 x

        Not -inf: if all keys of a query are masked, its softmax would be NaN.
        """
        if self._bias is None:
            queries, keys = self.queries.sentences[:, :, None], self.keys.sentences[:, None, :]
            if self._is_grid:
                queries, keys = queries[:1], keys[:1]
            shape = torch.broadcast_shapes(queries.shape, keys.shape)
            # Avoids a boolean temporary: it is slow on a CPU.
            masked = torch.ne(queries, keys, out=queries.new_empty(shape, dtype=dtype))
            if self._causal:
                masked += masked.new_ones(shape[1:]).triu(1)
            lowest = max(-1e9, torch.finfo(dtype).min / 4)  # finite in fp16 after adding the scores
            self._bias = masked.mul_(lowest)[:, None]
        return self._bias


class Layout:
    """Arrangement of packed tokens in rows of cells, of queries or of keys.

    tokens: (B, L), index of the token in each cell; index of a padding token if the cell is empty.
    sentences: (B, L), number of the sentence in each cell; -1 if empty. cells: (N,), cell of each
    token. Padding tokens have an empty cell, so that they affect no sentence, forward or backward.
    """

    def __init__(
        self,
        packed: Packed,
        rows: NDArray[np.int64],
        columns: NDArray[np.int64],
        shape: tuple[int, int],
    ) -> None:
        """rows, columns: (sentences,), first cell of each sentence. shape: (B, L)."""
        num_tokens, lens, device = len(packed.ids), packed.lens, packed.ids.device
        num_real = int(lens.sum())
        starts = np.cumsum(lens) - lens
        taken = np.repeat(rows * shape[1] + columns - starts, lens) + np.arange(num_real)
        tokens, sentences = np.full(shape, num_tokens - 1), np.full(shape, -1, dtype=np.int32)
        tokens.flat[taken] = np.arange(num_real)
        sentences.flat[taken] = np.repeat(np.arange(len(lens)), lens)
        cells = np.full(num_tokens, sentences.argmin())
        cells[:num_real] = taken
        self.tokens, self.cells = to_device(tokens, device), to_device(cells, device)
        self.sentences = to_device(sentences, device)
        self._split_indices: dict[int, Tensor] = {}
        self._join_index: Tensor | None = None

    def split(self, x: Tensor) -> Sequence[Tensor]:
        """Gather the heads of packed tokens, (N, parts, H, K), into rows, (B*H, L, K) each."""
        _, parts, num_heads, width = x.shape
        if parts not in self._split_indices:
            vectors = torch.arange(parts * num_heads, device=x.device).view(parts, 1, num_heads, 1)
            first = self.tokens[:, None] * (parts * num_heads)
            self._split_indices[parts] = (first + vectors).flatten()  # (parts, B, H, L)
        found = x.flatten(0, 2).index_select(0, self._split_indices[parts])
        return found.view(parts, -1, self.tokens.shape[1], width).unbind()

    def join(self, x: Tensor, num_heads: int) -> Tensor:
        """Gather packed tokens, (N, H, K), from the rows of all heads, (B*H, L, K)."""
        if self._join_index is None:
            length = self.tokens.shape[1]
            row, column = self.cells[:, None] // length, self.cells[:, None] % length
            heads = row * num_heads + torch.arange(num_heads, device=x.device)
            self._join_index = (heads * length + column).flatten()  # (N, H)
        return x.flatten(0, 1).index_select(0, self._join_index).unflatten(0, (-1, num_heads))


def first_fit(
    lens: NDArray[np.int64], lengths: list[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Assign sentences to rows (bin packing, first-fit decreasing).

    lens: tokens of each sentence in queries and keys, (sentences, 2). lengths: length of the rows
    of queries and of keys. Returns rows, (sentences,), and first columns, (sentences, 2).
    """
    rows, columns = np.zeros(len(lens), dtype=np.int64), np.zeros(lens.shape, dtype=np.int64)
    order, least = np.argsort(-lens.max(axis=1), kind="stable"), lens.min(axis=0).tolist()
    space: list[list[int]] = []  # free cells of each row, for queries and keys
    not_full: list[int] = []
    # Python integers: for a few rows they are faster than NumPy.
    for sentence, (query_len, key_len) in zip(order.tolist(), lens[order].tolist(), strict=True):
        for row in not_full:
            left = space[row]
            if query_len <= left[0] and key_len <= left[1]:
                break
        else:
            row, left = len(space), list(lengths)
            space.append(left)
            not_full.append(row)
        rows[sentence] = row
        columns[sentence] = lengths[0] - left[0], lengths[1] - left[1]
        left[0], left[1] = left[0] - query_len, left[1] - key_len
        if left[0] < least[0] or left[1] < least[1]:
            not_full.remove(row)
    return rows, columns


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
