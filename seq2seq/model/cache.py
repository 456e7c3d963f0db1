"""The decoder's key/value cache in a search.

B is the number of sentences and R of hypotheses (rows); those of a sentence are consecutive.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Memory:
    """The encoder's output as one layer attends to it, shared by the hypotheses of a sentence.

    keys, values: (B, H, S, K), computed once. mask: (B, 1, 1, S), True for source tokens.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor


@dataclass(frozen=True)
class AttentionHeads:
    """The heads of the cross-attention that show which source tokens are translated."""

    heads: tuple[tuple[int, int], ...]
    """Layer and head, from 0."""
    shift: int = 0
    """The attention of the position whose input (1) or output (0) is a target token shows its
    source."""

    def weights(self, attention: list[Tensor]) -> Tensor:
        """Return the mean weights of these heads, (B, T, S), of each layer's (B, H, T, S)."""
        return torch.stack([attention[layer][:, head] for layer, head in self.heads]).mean(dim=0)


@dataclass
class AttentionCache:
    """The keys and values of the tokens so far, each (R, H, length, K).

    capacity: number of positions to preallocate; beyond it, every step copies the cache.
    """

    capacity: int = 0
    length: int = 0
    _keys: Tensor = field(default_factory=lambda: torch.empty(0))
    _values: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def rows(self) -> int:
        """Number of hypotheses."""
        return len(self._keys)

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values of new positions, (R, H, T, K), and return all of them."""
        start, self.length = self.length, self.length + keys.shape[2]
        if not start:
            self._keys, self._values = self._reserve(keys), self._reserve(values)
        elif self.length > self._keys.shape[2]:
            self._keys = self._reserve(torch.cat([self._keys[:, :, :start], keys], dim=2))
            self._values = self._reserve(torch.cat([self._values[:, :, :start], values], dim=2))
        else:
            self._keys[:, :, start : self.length] = keys
            self._values[:, :, start : self.length] = values
        return self._keys[:, :, : self.length], self._values[:, :, : self.length]

    def _reserve(self, x: Tensor) -> Tensor:
        if self.capacity <= x.shape[2]:
            return x
        padded = x.new_empty(*x.shape[:2], self.capacity, x.shape[3])
        padded[:, :, : x.shape[2]] = x
        return padded

    def select(self, rows: Tensor) -> None:
        """Keep only `rows`, (R',), in that order."""
        if self.length:
            self._keys = self._keys[:, :, : self.length].index_select(0, rows)
            self._values = self._values[:, :, : self.length].index_select(0, rows)


@dataclass
class DecoderState:
    """The cache of a search: a growing one for each layer, and the source's, which does not grow.

    heads: whose attention is summed in `coverage`, (R, S), over the positions so far; None for no
    coverage.
    """

    caches: list[AttentionCache]
    memories: list[Memory]
    heads: AttentionHeads | None = None
    coverage: Tensor | None = None

    @property
    def source_mask(self) -> Tensor:
        """(B, S), True for source tokens."""
        return self.memories[0].mask[:, 0, 0]

    def cover(self, weights: list[Tensor]) -> None:
        """Add the attention of new positions, of each layer (B, H, W*T, S), to the coverage."""
        assert self.heads
        mean = self.heads.weights(weights)
        rows = mean.view(self.caches[0].rows, -1, mean.shape[-1]).sum(dim=1)
        self.coverage = rows if self.coverage is None else self.coverage + rows

    def select_rows(self, rows: Tensor) -> None:
        """Keep the hypotheses `rows`, in that order; a row may be repeated."""
        for cache in self.caches:
            cache.select(rows)
        if self.coverage is not None:
            self.coverage = self.coverage.index_select(0, rows)

    def select_sentences(self, sentences: Tensor) -> None:
        """Keep the source side of only these sentences; `select_rows` handles the target side."""
        # Remaining sentences may have shorter sources.
        mask = self.memories[0].mask.index_select(0, sentences)
        width = int(mask.sum(dim=-1).max())
        mask = mask[..., :width]
        if self.coverage is not None:
            self.coverage = self.coverage[:, :width]
        self.memories = [
            Memory(
                memory.keys.index_select(0, sentences)[:, :, :width],
                memory.values.index_select(0, sentences)[:, :, :width],
                mask,
            )
            for memory in self.memories
        ]
