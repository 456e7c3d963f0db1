"""The keys and values that a decoder has already computed, during a search.

B is the number of sentences, W of the hypotheses of each, H of heads; columns are the positions of
all hypotheses: W for each target position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

COMPACTED = 6
"""Number of steps after which unneeded columns are dropped."""
FIRST_POSITIONS = 16
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


class DecoderState:
    """The state of sentences that were started together: what their hypotheses have read so far.

    Keys and values stay where they were written: each step adds columns for the new tokens of all W
    hypotheses of a sentence, and `visible` says which columns are the ancestors of which
    hypothesis. To select hypotheses, only that small table is permuted.
    """

    def __init__(
        self,
        layers: int,
        *,
        beam: int = 1,
        memories: Sequence[Tensor] = (),
        source_lens: Sequence[int] = (),
        heads: AttentionHeads | None = None,
        capacity: int = FIRST_POSITIONS,
    ) -> None:
        """memories: keys and values of the source, (2, B, H, S, K), of each layer; none for a
        language model. source_lens: number of tokens of each source. heads: whose attention is
        summed in `coverage`, (B, W, S), over the positions so far; None for no coverage. capacity:
        number of positions to reserve.
        """
        self.beam, self.heads = beam, heads
        self.memories, self.source_lens = list(memories), list(source_lens)
        self.source_bias = self._padding()
        """(B, 1, S): 0 for source tokens, -inf for padding; None if there is no padding."""
        self.coverage: Tensor | None = None
        self.length = 0
        """Number of tokens that each hypothesis has read."""
        self.columns = 0
        self._needed = 0
        """Number of columns after the last that no hypothesis needs were dropped."""
        self.visible: Tensor | None = None
        """(B, W, columns): 0, or -inf where a hypothesis must not attend; None: all are visible."""
        self._pools: list[Tensor | None] = [None] * layers
        """Of each layer: keys and values, (2, B, H, columns, K)."""
        self._capacity = capacity * beam

    @property
    def longest_source(self) -> int:
        """S: number of tokens of the longest source."""
        return max(self.source_lens)

    def _padding(self) -> Tensor | None:
        if not self.memories or min(self.source_lens) == self.longest_source:
            return None
        device = self.memories[0].device
        lens = torch.tensor(self.source_lens, device=device)[:, None, None]
        padded = torch.arange(self.longest_source, device=device) >= lens
        return torch.zeros(padded.shape, device=device).masked_fill_(padded, -torch.inf)

    def advance(self, count: int, device: torch.device) -> Tensor | None:
        """Make room for the next token of each hypothesis or, of one, for the next `count` tokens.

        Returns the bias of their attention, (B or 1, W or count, columns); None if all columns are
        visible to all.
        """
        new = max(count, self.beam)
        if self.columns - self._needed >= COMPACTED * self.beam > COMPACTED:
            self._compact()
        before, self.columns = self.columns, self.columns + new
        self.length += count
        if self.columns > self._capacity:
            self._capacity = max(2 * self._capacity, self.columns)
            self._pools = [pool if pool is None else self._grown(pool) for pool in self._pools]
        if new == 1:
            return None
        own = torch.full((new, new), -torch.inf, device=device)
        own = own.triu_(1) if self.beam == 1 else own.fill_diagonal_(0.0)
        if not before:
            bias = own[None]
        elif self.visible is None:
            bias = torch.cat([own.new_zeros(1, new, before), own[None]], dim=-1)
        else:
            bias = torch.cat([self.visible, own.expand(len(self.visible), -1, -1)], dim=-1)
        if self.beam > 1:
            self.visible = bias
        return bias

    def _compact(self) -> None:
        """Drop the columns of hypotheses without descendants.

        After a few steps the hypotheses of a sentence have all but their last tokens in common, so
        that nearly W - 1 of W columns are of no use. On a CPU alone: the copy costs a GPU more.
        """
        assert self.visible is not None
        if self.visible.device.type != "cpu" or len(self.visible) < len(self.source_lens):
            self._needed = self.columns
            return
        needed = (self.visible == 0).any(dim=1).numpy()  # (B, columns)
        self.columns = self._needed = int(needed.sum(axis=1).max())
        order = np.argsort(~needed, axis=1, kind="stable")[:, : self.columns]
        index = torch.from_numpy(order)
        self.visible = self.visible.gather(2, index[:, None].expand(-1, self.beam, -1))
        for pool in self._pools:
            assert pool is not None
            first = torch.arange(pool[..., 0, 0].numel()).view(2, len(index), -1, 1) * pool.shape[3]
            rows = (first + index[:, None]).flatten()
            kept = pool.view(-1, pool.shape[4]).index_select(0, rows)
            pool[:, :, :, : self.columns] = kept.view(*pool.shape[:3], self.columns, -1)

    def _grown(self, pool: Tensor) -> Tensor:
        larger = pool.new_empty(*pool.shape[:3], self._capacity, pool.shape[4])
        larger[:, :, :, : pool.shape[3]] = pool
        return larger

    def write(self, layer: int, heads: Tensor) -> tuple[Tensor, Tensor]:
        """Write a layer's new keys and values, (2, B, H, W or count, K), in the room of `advance`.

        Returns all of them, (B*H, columns, K) each.
        """
        pool, end = self._pools[layer], self.columns
        if pool is None:
            shape = *heads.shape[:3], self._capacity, heads.shape[4]
            pool = self._pools[layer] = heads.new_empty(shape)
        pool[:, :, :, end - heads.shape[3] : end] = heads
        keys, values = pool.flatten(1, 2)[:, :, :end]
        return keys, values

    def read_source(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return a layer's keys and values of the sources, (B*H, S, K) each."""
        keys, values = self.memories[layer].flatten(1, 2)[:, :, : self.longest_source]
        return keys, values

    def cover(self, weights: list[Tensor]) -> None:
        """Add the attention of new positions, of each layer (B, H, W, S), to the coverage."""
        assert self.heads
        rows = self.heads.weights(weights)
        self.coverage = rows if self.coverage is None else self.coverage + rows

    def select(self, origins: Tensor) -> None:
        """Continue in each sentence with its hypotheses `origins`, (B, W); some may be repeated."""
        index = origins[:, :, None]
        if self.visible is not None:
            visible = self.visible.expand(len(origins), -1, -1)
            self.visible = visible.gather(1, index.expand(-1, -1, visible.shape[-1]))
        if self.coverage is not None:
            self.coverage = self.coverage.gather(1, index.expand_as(self.coverage))

    def keep(self, sentences: Sequence[int]) -> None:
        """Keep only these sentences, in this order; some may be repeated."""
        device = self.memories[0].device
        index = torch.tensor(sentences, device=device)
        self.source_lens = [self.source_lens[i] for i in sentences]
        longest = self.longest_source
        self.memories = [_select(each, index, longest) for each in self.memories]
        self.source_bias = self._padding()
        self._pools = [
            pool if pool is None else _select(pool, index, self.columns, self._capacity)
            for pool in self._pools
        ]
        if self.visible is not None and len(self.visible) > 1:
            self.visible = self.visible.index_select(0, index)
        if self.coverage is not None:
            self.coverage = self.coverage.index_select(0, index)[:, :, :longest]


class Step:
    """A step of several states together: their sentences are consecutive."""

    def __init__(
        self, tokens: Tensor, states: Sequence[DecoderState], *, need_weights: bool
    ) -> None:
        """tokens: (B, Q): the newest of each hypothesis or, of one, several."""
        self.need_weights = need_weights
        device, count = tokens.device, 1 if states[0].beam > 1 else tokens.shape[1]
        firsts = [state.length for state in states]
        sizes = [len(state.source_lens) or len(tokens) for state in states]
        self.end = max(firsts) + count
        """A number greater than all positions."""
        self.positions = torch.arange(firsts[0], firsts[0] + count, device=device)[None]
        """(B or 1, Q or 1): the position of each token."""
        if len(states) > 1:
            repeated = np.repeat(np.array(firsts), sizes)
            self.positions = torch.from_numpy(repeated).to(device, non_blocking=True)[:, None]
        ends = np.cumsum(sizes).tolist()
        self.parts = [
            (slice(end - size, end), state, state.advance(count, device))
            for end, size, state in zip(ends, sizes, states, strict=True)
        ]
        """The sentences of each state, the state, and the bias of its attention to its columns."""


def _select(pool: Tensor, index: Tensor, used: int, capacity: int | None = None) -> Tensor:
    """Return some sentences of keys and values, (2, B, H, S, K), of which `used` are in use."""
    kept = pool[:, index, :, :used]  # much faster than index_select, but for the first axis
    if capacity is None:
        return kept
    selected = pool.new_empty(*kept.shape[:3], capacity, kept.shape[4])
    selected[:, :, :, :used] = kept
    return selected
