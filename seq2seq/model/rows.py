"""Rows of packed sentences, for attention by products of whole rows.

Sentences share rows of one length, where a bias separates them: that is faster than one row for
each sentence.
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
ROWS_ROUND_LEN = 128
"""The number of longer rows is not rounded: an extra one would cost more than a new kernel."""


class Layout:
    """The rows of queries or of keys, and where the packed tokens are in them.

    tokens: (B, L), the index of the token in each cell, of padding if it is empty. sentences: (B,
    L), the number of its sentence, -1 if it is empty. cells: (N,), the cell of each token, an empty
    one for padding. So neither affects a sentence, forward or backward.
    """

    def __init__(
        self,
        packed: Packed,
        rows: NDArray[np.int64],
        columns: NDArray[np.int64],
        grid: tuple[int, int],
    ) -> None:
        """rows, columns: (sentences,), where each sentence begins. grid: (B, L)."""
        num_tokens, lens, device = len(packed.ids), packed.lens, packed.ids.device
        num_real = int(lens.sum())
        starts = np.cumsum(lens) - lens
        taken = np.repeat(rows * grid[1] + columns - starts, lens) + np.arange(num_real)
        tokens, sentences = np.full(grid, num_tokens - 1), np.full(grid, -1, dtype=np.int32)
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
        # The vectors of all heads lie in memory as rows, also of those between two tokens of `x`,
        # if it is a part of a product for queries, keys and values.
        apart, length = x.stride(0) // x.shape[2], self.tokens.shape[1]
        vectors = x.as_strided(((len(x) - 1) * apart + x.shape[1], x.shape[2]), (x.shape[2], 1))
        key = (x.shape[1], apart)
        if key not in self._indices:
            heads = torch.arange(x.shape[1], device=x.device)[:, None]
            self._indices[key] = (self.tokens[:, None] * apart + heads).flatten()  # (B, H, L)
        return vectors.index_select(0, self._indices[key]).view(-1, length, x.shape[2])

    def join(self, x: Tensor, num_heads: int) -> Tensor:
        """Gather packed tokens, (N, H, K), from the rows of all heads, (B*H, L, K)."""
        key = (num_heads, 0)
        if key not in self._indices:
            length = self.tokens.shape[1]
            row, column = self.cells[:, None] // length, self.cells[:, None] % length
            heads = row * num_heads + torch.arange(num_heads, device=x.device)
            self._indices[key] = (heads * length + column).flatten()  # (N, H)
        return x.flatten(0, 1).index_select(0, self._indices[key]).unflatten(0, (-1, num_heads))


class Rows:
    """The rows of queries and of keys: corresponding ones contain the same sentences."""

    @torch.inference_mode(False)  # which would make tensors that training cannot use
    def __init__(self, own: Packed, other: Packed, causal: bool) -> None:
        lens = np.stack([own.lens, other.lens], axis=1)
        lengths = [own.longest, other.longest]
        self._alike = own.is_grid and other.is_grid  # each row is filled by one sentence
        if self._alike:
            rows, columns, num_rows = np.arange(len(own)), np.zeros_like(lens), len(own)
        else:
            lengths = row_lens(lengths)
            rows, columns = first_fit(lens, lengths)
            num_rows = int(rows.max()) + 1
            # Both have an empty cell, for padding.
            num_rows += any(lens.sum(axis=0) == np.multiply(lengths, num_rows))
            if max(lengths) <= ROWS_ROUND_LEN:
                num_rows = round_up(num_rows, ROWS_ROUND)
        self.queries = self.keys = Layout(own, rows, columns[:, 0], (num_rows, lengths[0]))
        if other is not own:
            self.keys = Layout(other, rows, columns[:, 1], (num_rows, lengths[1]))
        self._causal = causal
        self._biases: dict[torch.dtype, Tensor] = {}

    @torch.inference_mode(False)
    def bias(self, dtype: torch.dtype) -> Tensor:
        """Return the bias of the scores, (B, 1, T, S) or (1, 1, T, S): 0 where a query may attend,
        or very low.

        For example, causal, for one row with the sentences `a b c` and `d e`, and one empty
        cell; 0 where there is an x in the line of a query and the column of a key:

                   a  b  c  d  e  .
                a  x
                b  x  x
                c  x  x  x
                d           x
                e           x  x
                .                 x

        Not -inf: all keys of an empty cell can be masked; its softmax would be NaN.
        """
        if dtype not in self._biases:
            queries, keys = self.queries.sentences[:, :, None], self.keys.sentences[:, None, :]
            if self._alike:
                queries, keys = queries[:1], keys[:1]
            shape = torch.broadcast_shapes(queries.shape, keys.shape)
            # Avoids a boolean temporary: on a CPU it is slow.
            apart = torch.ne(queries, keys, out=queries.new_empty(shape, dtype=dtype))
            if self._causal:
                apart += apart.new_ones(shape[1:]).triu(1)
            lowest = max(-1e9, torch.finfo(dtype).min / 4)  # finite in fp16, with scores
            self._biases[dtype] = apart.mul_(lowest)[:, None]
        return self._biases[dtype]


_FOUND: WeakKeyDictionary[Packed, WeakKeyDictionary[Packed, dict[bool, Rows]]] = WeakKeyDictionary()
"""The rows of the batches in use, for all layers of a pass."""


def rows_of(own: Packed, other: Packed, causal: bool) -> Rows:
    """Return the rows of queries and keys."""
    found = _FOUND.setdefault(own, WeakKeyDictionary()).setdefault(other, {})
    if causal not in found:
        found[causal] = Rows(own, other, causal)
    return found[causal]


def first_fit(
    lens: NDArray[np.int64], lengths: list[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the row of each sentence, and its first column for queries and keys, (sentences, 2).

    First-fit decreasing: the longest first, each in the first row with space for both.
    lens: (sentences, 2). lengths: of the rows, for both.
    """
    rows, columns = np.zeros(len(lens), dtype=np.int64), np.zeros(lens.shape, dtype=np.int64)
    order, least = np.argsort(-lens.max(axis=1), kind="stable"), lens.min(axis=0).tolist()
    space: list[list[int]] = []  # of each row, for queries and keys
    not_full: list[int] = []
    # Plain numbers: there are few rows, and NumPy's operations take longer than many of these.
    for sentence, (own, other) in zip(order.tolist(), lens[order].tolist(), strict=True):
        for row in not_full:
            left = space[row]
            if own <= left[0] and other <= left[1]:
                break
        else:
            row, left = len(space), list(lengths)
            space.append(left)
            not_full.append(row)
        rows[sentence] = row
        columns[sentence] = lengths[0] - left[0], lengths[1] - left[1]
        left[0], left[1] = left[0] - own, left[1] - other
        if left[0] < least[0] or left[1] < least[1]:
            not_full.remove(row)
    return rows, columns
