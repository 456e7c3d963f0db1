"""Rows of packed sentences, for attention by batched matrix products.

Several sentences share a row, and a bias on the scores separates them: that is faster than one row
per sentence. In the shapes of this module, B is the number of rows and L the length of a row: T for
rows of queries, S for rows of keys.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seq2seq.data.packing import Packed, round_up, row_lens
from seq2seq.machine.devices import to_device

ROWS_ROUND = 4
"""The number of rows is a multiple of this, so that few shapes occur."""
MAX_LEN_TO_ROUND = 128
"""Row length above which the number of rows is not rounded: an extra row would be too slow."""


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
        self._indices: dict[tuple[int, int], Tensor] = {}

    def split(self, x: Tensor) -> Tensor:
        """Gather the heads of packed tokens, (N, H, K), into rows, (B*H, L, K)."""
        if x.stride()[1:] != (x.shape[2], 1) or x.stride(0) % x.shape[2] or not x.stride(0):
            x = x.contiguous()
        # A view of memory as vectors of length K. If `x` is a slice of fused queries, keys and
        # values, it includes the vectors between two tokens of `x`.
        stride, length = x.stride(0) // x.shape[2], self.tokens.shape[1]
        vectors = x.as_strided(((len(x) - 1) * stride + x.shape[1], x.shape[2]), (x.shape[2], 1))
        key = (x.shape[1], stride)
        if key not in self._indices:
            heads = torch.arange(x.shape[1], device=x.device)[:, None]
            self._indices[key] = (self.tokens[:, None] * stride + heads).flatten()  # (B, H, L)
        return vectors.index_select(0, self._indices[key]).view(-1, length, x.shape[2])

    def join(self, x: Tensor, num_heads: int) -> Tensor:
        """Gather packed tokens, (N, H, K), from the rows of all heads, (B*H, L, K)."""
        key = (num_heads, 0)  # no key of `split`: a stride is at least 1
        if key not in self._indices:
            length = self.tokens.shape[1]
            row, column = self.cells[:, None] // length, self.cells[:, None] % length
            heads = row * num_heads + torch.arange(num_heads, device=x.device)
            self._indices[key] = (heads * length + column).flatten()  # (N, H)
        return x.flatten(0, 1).index_select(0, self._indices[key]).unflatten(0, (-1, num_heads))


class Rows:
    """Rows of queries and of keys: rows of equal index contain the same sentences."""

    @torch.inference_mode(False)  # training cannot use tensors of inference mode
    def __init__(self, query: Packed, key: Packed, causal: bool) -> None:
        lens = np.stack([query.lens, key.lens], axis=1)
        lengths = [query.longest, key.longest]
        self._is_grid = query.is_grid and key.is_grid  # each sentence fills one row
        if self._is_grid:
            rows, columns, num_rows = np.arange(len(query)), np.zeros_like(lens), len(query)
        else:
            lengths = row_lens(lengths)
            rows, columns = first_fit(lens, lengths)
            num_rows = int(rows.max()) + 1
            # Queries and keys need an empty cell, for padding.
            num_rows += any(lens.sum(axis=0) == np.multiply(lengths, num_rows))
            if max(lengths) <= MAX_LEN_TO_ROUND:
                num_rows = round_up(num_rows, ROWS_ROUND)
        self.queries = self.keys = Layout(query, rows, columns[:, 0], (num_rows, lengths[0]))
        if key is not query:
            self.keys = Layout(key, rows, columns[:, 1], (num_rows, lengths[1]))
        self._causal = causal
        self._biases: dict[torch.dtype, Tensor] = {}

    @torch.inference_mode(False)
    def bias(self, dtype: torch.dtype) -> Tensor:
        """Return the bias of the scores, (B, 1, T, S) or (1, 1, T, S).

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
        if dtype not in self._biases:
            queries, keys = self.queries.sentences[:, :, None], self.keys.sentences[:, None, :]
            if self._is_grid:
                queries, keys = queries[:1], keys[:1]
            shape = torch.broadcast_shapes(queries.shape, keys.shape)
            # Avoids a boolean temporary: it is slow on a CPU.
            masked = torch.ne(queries, keys, out=queries.new_empty(shape, dtype=dtype))
            if self._causal:
                masked += masked.new_ones(shape[1:]).triu(1)
            lowest = max(-1e9, torch.finfo(dtype).min / 4)  # finite in fp16 after adding the scores
            self._biases[dtype] = masked.mul_(lowest)[:, None]
        return self._biases[dtype]


_CACHE: WeakKeyDictionary[Packed, WeakKeyDictionary[Packed, dict[bool, Rows]]] = WeakKeyDictionary()
"""Rows of the batches in use, shared by all layers."""


def rows_of(query: Packed, key: Packed, causal: bool) -> Rows:
    """Return the rows of queries and keys, cached while the batch is in use."""
    cached = _CACHE.setdefault(query, WeakKeyDictionary()).setdefault(key, {})
    if causal not in cached:
        cached[causal] = Rows(query, key, causal)
    return cached[causal]


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
