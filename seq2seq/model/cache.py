"""The keys and values that a decoder has already computed, during a search.

B is the number of sentences, W the number of hypotheses of each, H the number of heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FIRST_COLUMNS = 16
"""Number of target positions for which a search reserves memory; doubled whenever it is full."""


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
    """The keys and values of one layer's self-attention, for all hypotheses of each sentence.

    What is written stays where it is: which columns belong to a hypothesis is known to the
    `DecoderState` alone.
    """

    pool: Tensor
    """(2, B, H, columns, K): keys and values."""

    def write(self, heads: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Write keys and values, (2, B, H, Q, K), before column `end`.

        Returns all keys and values from column `start` on, (B*H, columns, K) each.
        """
        self.pool[:, :, :, end - heads.shape[3] : end] = heads
        keys, values = self.pool.flatten(1, 2)[:, :, start:end]
        return keys, values


@dataclass
class Memory:
    """The encoder's output as one layer attends to it, shared by the hypotheses of a sentence."""

    pool: Tensor
    """(2, B, H, S, K): keys and values."""

    def read(self, length: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the first positions, (B*H, length, K) each."""
        keys, values = self.pool.flatten(1, 2)[:, :, :length]
        return keys, values


class DecoderState:
    """The state of a search: what each hypothesis has already read, without copies of it.

    Each step writes keys and values of the new tokens of all W hypotheses of a sentence to new
    columns, (B, H, columns, K), and `visible` says which columns are the ancestors of each
    hypothesis; to select hypotheses only that small table is permuted. In the same way a finished
    sentence makes room for another: the columns before its start are not visible to it.
    """

    def __init__(
        self,
        layers: int,
        *,
        beam: int = 1,
        memories: Sequence[Memory] = (),
        source_lens: Sequence[int] = (),
        heads: AttentionHeads | None = None,
        capacity: int = FIRST_COLUMNS,
    ) -> None:
        """memories: of each layer, with the lengths of their sentences; none for a language model.

        heads: whose attention is summed in `coverage`, (B*W, S), over the positions so far; None
        for no coverage. capacity: number of positions to reserve.
        """
        self.beam, self.heads = beam, heads
        self.caches: list[AttentionCache | None] = [None] * layers
        self.memories, self.source_lens = list(memories), list(source_lens)
        self.coverage: Tensor | None = None
        self.source_bias: Tensor | None = None
        """(B, 1, S): 0 for source tokens, -inf for padding; None if there is no padding."""
        self.positions: Tensor | int = 0
        """Position of the newest token: of all sentences, or of each, (B, 1)."""
        self.visible: Tensor | None = None
        """(B, W, columns from `first` on): 0, or -inf where a hypothesis must not attend; None if
        all are visible."""
        self.first, self.end = 0, 0
        """The columns in use."""
        self._starts: list[int] = []
        self._capacity = capacity
        if memories:
            self.source_bias = self._padding(memories[0].pool.device)

    def _padding(self, device: torch.device) -> Tensor | None:
        """Return the bias of the padding of the sources."""
        longest = max(self.source_lens)
        if min(self.source_lens) == longest:
            return None
        lens = torch.tensor(self.source_lens, device=device)[:, None, None]
        inside = torch.arange(longest, device=device) < lens
        return torch.zeros(inside.shape, device=device).masked_fill_(~inside, -torch.inf)

    @property
    def longest_source(self) -> int:
        """S: the number of tokens of the longest source."""
        return max(self.source_lens)

    def advance(self, tokens: Tensor) -> tuple[Tensor, int, Tensor | None]:
        """Make room for new tokens, (B, Q): one of each hypothesis, or several of one.

        Returns their positions, (Q,) or (B, Q), a number that is greater than all of these, and
        the bias of the attention to all columns, (B or 1, Q, columns); None if all are visible.
        """
        count, device = tokens.shape[1], tokens.device
        self._starts = self._starts or [0] * len(tokens)
        self._reserve(count)
        length, self.end = self.end - self.first, self.end + count
        new = 1 if self.beam > 1 else count
        positions: Tensor
        if isinstance(self.positions, int):
            positions = torch.arange(self.positions, self.positions + new, device=device)
            limit = self.positions + new
        else:
            positions = self.positions
            limit = max(self.end - start for start in self._starts) // self.beam
        self.positions = self.positions + new
        if self.visible is None and count == 1:
            return positions, limit, None
        own = torch.full((count, count), -torch.inf, device=device)
        own = own.triu_(1) if self.beam == 1 else own.fill_diagonal_(0.0)
        before = self.visible
        if before is None:
            before = own.new_zeros(1, 1, length)
        rows = len(tokens) if self.beam > 1 else len(before)
        bias = torch.cat([before.expand(rows, count, length), own.expand(rows, -1, -1)], dim=-1)
        if self.beam > 1:
            self.visible = bias
        elif self.visible is not None:
            self.visible = bias[:, -1:]
        return positions, limit, bias

    def _reserve(self, count: int) -> None:
        """Move the columns in use to the front, or double their number, if `count` do not fit."""
        if all(cache is None for cache in self.caches):
            self._capacity = max(self._capacity * self.beam, count)
            return
        if self.end + count <= self._capacity:
            return
        used = self.end - self.first
        if 2 * (used + count) > self._capacity:
            self._capacity = max(2 * self._capacity, used + count)
        for cache in self.caches:
            assert cache is not None
            shape = list(cache.pool.shape)
            shape[3] = self._capacity
            moved = cache.pool.new_zeros(shape)
            moved[:, :, :, :used] = cache.pool[:, :, :, self.first : self.end]
            cache.pool = moved
        self._starts = [start - self.first for start in self._starts]
        self.first, self.end = 0, used

    def write(self, layer: int, heads: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new keys and values of a layer, (2, B, H, Q, K), in the room of `advance`.

        Returns all of them, (B*H, columns, K) each.
        """
        cache = self.caches[layer]
        if cache is None:
            shape = list(heads.shape)
            shape[3] = self._capacity
            # Zeros: what is not visible counts 0 times, but NaN remains NaN.
            cache = self.caches[layer] = AttentionCache(heads.new_zeros(shape))
        return cache.write(heads, self.first, self.end)

    def cover(self, weights: list[Tensor]) -> None:
        """Add the attention of new positions, of each layer (B, H, W, S), to the coverage."""
        assert self.heads
        rows = self.heads.weights(weights).flatten(0, 1)
        if self.coverage is None:
            self.coverage = rows
            return
        width = min(rows.shape[1], self.coverage.shape[1])  # the longest source may be another now
        rows[:, :width] += self.coverage[:, :width]
        self.coverage = rows

    def select(self, origins: Tensor) -> None:
        """Continue in each sentence with its hypotheses `origins`, (B, W); some may be repeated."""
        if self.beam == 1:
            return
        assert self.visible is not None
        self.visible = self.visible.gather(1, origins[:, :, None].expand_as(self.visible))
        if self.coverage is not None:
            rows = self.coverage.unflatten(0, origins.shape)
            self.coverage = rows.gather(1, origins[:, :, None].expand_as(rows)).flatten(0, 1)

    def keep(self, sentences: Sequence[int]) -> None:
        """Keep only these sentences, in this order; some may be repeated."""
        self.source_lens = [self.source_lens[i] for i in sentences]
        self._starts = [self._starts[i] for i in sentences] if self._starts else []
        device = self.memories[0].pool.device
        index, longest = torch.tensor(sentences, device=device), self.longest_source
        for memory in self.memories:
            memory.pool = _select(memory.pool[:, :, :, :longest], index)
        for cache in self.caches:
            if cache is not None:
                cache.pool = _select(cache.pool, index)
        self.source_bias = self._padding(device)
        if self.visible is not None:
            self.visible = self.visible.index_select(0, index)
        if isinstance(self.positions, Tensor):
            self.positions = self.positions.index_select(0, index)
        if self.coverage is not None:
            rows = self.coverage.unflatten(0, (-1, self.beam)).index_select(0, index)
            self.coverage = rows.flatten(0, 1)

    def replace(self, sentences: Sequence[int], other: DecoderState) -> None:
        """Start the sentences of another state, which has made no step, in the place of these."""
        device = self.memories[0].pool.device
        index = torch.tensor(sentences, device=device)
        for place, length in zip(sentences, other.source_lens, strict=True):
            self.source_lens[place] = length
            self._starts[place] = self.end
        count, longest = other.longest_source, self.longest_source
        for memory, new in zip(self.memories, other.memories, strict=True):
            if memory.pool.shape[3] < longest:
                shape = list(memory.pool.shape)
                shape[3] = longest
                wider = memory.pool.new_zeros(shape)
                wider[:, :, :, : memory.pool.shape[3]] = memory.pool
                memory.pool = wider
            memory.pool[:, index, :, :count] = new.pool
        self.source_bias = self._padding(device)
        size = len(self.source_lens)
        if isinstance(self.positions, int):
            self.positions = torch.full((size, 1), self.positions, device=device)
        self.positions[index] = 0
        if self.coverage is not None:
            self.coverage.unflatten(0, (size, -1))[index] = 0.0
        if self.visible is None:
            self.visible = torch.zeros(size, self.beam, self.end - self.first, device=device)
        self.visible[index] = -torch.inf
        first = min(self._starts)
        self.visible = self.visible[:, :, first - self.first :]
        self.first = first


def _select(pool: Tensor, index: Tensor) -> Tensor:
    """Return some of the sentences of keys and values, (2, B, H, S, K)."""
    # index_select is slow over another than the first axis.
    selected = pool.new_empty(2, len(index), *pool.shape[2:])
    for own, other in zip(selected, pool, strict=True):
        torch.index_select(other, 0, index, out=own)
    return selected
