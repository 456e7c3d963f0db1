"""The keys and values that a decoder has already computed, during a search, and attention to them.

B is the number of sentences, W of the hypotheses of each, Q of queries of each, H of heads of width
K = D/H, S of source tokens, P of slots for sentences; columns are the rows of a sentence's pool of
keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

FIRST_POSITIONS = 64
"""Number of target positions for which a search reserves memory; doubled whenever it is full."""
FEW = 32
"""Number of queries of a sentence up to which the kernel for CPUs attends."""
IN_ORDER = np.empty((0, 0, 0), dtype=np.int32)


@dataclass(frozen=True)
class AttentionHeads:
    """The heads of the cross-attention that show which source tokens are translated."""

    heads: tuple[tuple[int, int], ...]
    """Layer and head, from 0."""
    shift: int = 0
    """The attention of the position whose input (1) or output (0) is a target token shows its
    source."""

    def weights(self, attention: Sequence[Tensor]) -> Tensor:
        """Return the mean weights of these heads, (B, T, S), of each layer's (B, H, T, S)."""
        return torch.stack([attention[layer][:, head] for layer, head in self.heads]).mean(dim=0)


@dataclass(frozen=True)
class Visible:
    """Which columns of their sentence's pool queries attend to."""

    slots: NDArray[np.int64]
    """(B,): the pool of each sentence."""
    lens: NDArray[np.int64]
    """(B,): how many columns."""
    columns: Tensor | None
    """(B, Q, L): which, the first of each row; None for the first columns of the pool."""
    device: torch.device

    @cached_property
    def mask(self) -> Tensor | None:
        """(B, 1, Q or 1, columns): True where a query attends; None if everywhere.

        It is made before hypotheses are selected, which changes their columns.
        """
        longest = int(self.lens.max())
        lens = to_device(self.lens, self.device)[:, None, None]
        inside = torch.arange(longest, device=self.device) < lens
        if self.columns is None:
            return None if int(self.lens.min()) == longest else inside[:, None]
        # A query attends at least to its first column, so that this may stand for no column.
        columns = self.columns[:, :, :longest].long()
        columns = torch.where(inside, columns, columns[:, :, :1])
        shape = *columns.shape[:2], longest * columns.shape[1]
        seen = torch.zeros(shape, dtype=torch.bool, device=self.device)
        return seen.scatter_(2, columns, True)[:, None]

    def read(self, pool: Tensor) -> Tensor:
        """Return what is in use of keys and values, (B, columns, 2D)."""
        width = int(self.lens.max()) * (1 if self.columns is None else self.columns.shape[1])
        used = pool[: len(self.slots), :width]
        if not np.array_equal(self.slots, np.arange(len(self.slots))):
            used = pool[to_device(self.slots, self.device), :width]
        if self.mask is not None and self.device.type == "cpu":  # where the rest is uninitialised
            used = used.masked_fill(~self.mask.any(dim=2)[:, 0, :, None], 0)
        return used


class DecoderState:
    """What the hypotheses of some sentences have read so far, and their sources.

    Keys and values stay where they were written: a step writes those of a sentence's W hypotheses
    into the next W columns of its pool, and `ancestors` says which columns a hypothesis comes from.
    To select hypotheses, only that small table is permuted.
    """

    def __init__(
        self,
        layers: int,
        device: torch.device,
        *,
        beam: int = 1,
        source_lens: Sequence[int] = (),
        memories: Sequence[Tensor] = (),
        heads: AttentionHeads | None = None,
        sentences: int = 0,
        capacity: int = FIRST_POSITIONS,
    ) -> None:
        """memories: keys and values of the sources, (B, S, 2D), of each layer; source_lens: number
        of tokens of each. A language model has no sources, but a number of sentences. heads: whose
        attention is summed in `coverage`, (B, W, S), over the positions so far; None for no
        coverage. capacity: number of positions to reserve.
        """
        count = len(source_lens) or sentences
        self.beam, self.device, self.heads = beam, device, heads
        self.memories = list(memories)
        """Of each layer: keys and values, (P, S, 2D)."""
        self.source_lens = np.array(source_lens, dtype=np.int64)
        self.lengths = np.zeros(count, dtype=np.int64)
        """(B,): number of tokens that the hypotheses of each sentence have read."""
        self.coverage: Tensor | None = None
        self.slots = np.arange(count, dtype=np.int64)
        """(B,): where in the P slots of pools and memories a sentence is."""
        self._pools: list[Tensor | None] = [None] * layers
        """Of each layer: keys and values, (P, capacity * W, 2D)."""
        self._num_slots, self._capacity = count, capacity
        self._ancestors = torch.zeros(count, beam, capacity, dtype=torch.int32, device=device)
        """(B, W, capacity): the column of each token of a hypothesis."""
        self._changed()

    def __len__(self) -> int:
        return len(self.lengths)

    def _changed(self) -> None:
        """Follow a change of the sentences."""
        self._rows = to_device(np.arange(len(self)), self.device)
        self._index = to_device(self.slots, self.device)
        self.sources: Visible | None = None
        """Which columns of the memories are source tokens."""
        if self.memories:
            self.sources = Visible(self.slots, self.source_lens, None, self.device)

    def advance(self, count: int) -> None:
        """Make room for the next token of each hypothesis or, of one, for the first `count`."""
        assert count == 1 or (self.beam == 1 and not self.lengths.any())
        before = self.lengths
        longest = int(before.max()) + count
        if longest > self._capacity:
            self._capacity = max(2 * self._capacity, longest)
            self._ancestors = F.pad(self._ancestors, (0, self._capacity - self._ancestors.shape[2]))
            self._move_pools()
        self.lengths = before + count
        columns = before[:, None] * self.beam + np.arange(count * self.beam)
        self._columns = to_device(columns, self.device)
        """(B, W or count): where the new keys and values are written."""
        self.positions = to_device(before[:, None] + np.arange(count), self.device)
        """(B, 1 or count): the positions of the new tokens."""
        self.visible: Visible | None = None
        """What the new tokens attend to; None if each attends to those up to itself."""
        if count == 1:
            ancestors = None
            if self.beam > 1:
                ancestors = self._ancestors
                ancestors[self._rows, :, self.positions[:, 0]] = self._columns.int()
            self.visible = Visible(self.slots, self.lengths, ancestors, self.device)

    def _room(self, like: Tensor, columns: int) -> Tensor:
        """Return room for keys and values, (P, columns, 2D)."""
        shape = self._num_slots, columns, like.shape[2]
        # A mask hides what is not in use, which must be a number; the kernel for CPUs does not read
        # it, and what is never written then takes no memory.
        return like.new_empty(shape) if like.device.type == "cpu" else like.new_zeros(shape)

    def _moved(self, pool: Tensor, columns: int, used: int) -> Tensor:
        """Return more room with the columns of a pool that are in use."""
        larger = self._room(pool, columns)
        larger[: len(pool), :used] = pool[:, :used]
        return larger

    def _move_pools(self) -> None:
        """Make room in the pools for all slots and positions."""
        used = int(self.lengths.max(initial=0)) * self.beam
        for layer, pool in enumerate(self._pools):
            if pool is not None:
                self._pools[layer] = self._moved(pool, self._capacity * self.beam, used)

    def write(self, layer: int, new: Tensor) -> Tensor:
        """Write a layer's new keys and values, (B, W or count, 2D).

        Returns its pool or, of a first step of several tokens, what is new.
        """
        pool = self._pools[layer]
        if pool is None:
            pool = self._pools[layer] = self._room(new, self._capacity * self.beam)
        pool[self._index[:, None], self._columns] = new
        return pool if self.visible else new

    def cover(self, weights: Sequence[Tensor]) -> None:
        """Add the attention of new positions, of each layer (B, H, W, S), to the coverage."""
        assert self.heads
        rows = self.heads.weights(weights)
        self.coverage = rows if self.coverage is None else self.coverage + rows

    def select(self, origins: Tensor) -> None:
        """Continue in each sentence with its hypotheses `origins`, (B, W); some may be repeated."""
        index = origins[:, :, None]
        if self.beam > 1:
            used = self._ancestors[:, :, : int(self.lengths.max())]
            used.copy_(used.gather(1, index.expand_as(used)))
        if self.coverage is not None:
            self.coverage = self.coverage.gather(1, index.expand_as(self.coverage))

    def keep(self, sentences: Sequence[int]) -> None:
        """Keep only these sentences, in this order; some may be repeated."""
        chosen = np.array(sentences, dtype=np.int64)
        rows = to_device(chosen, self.device)
        self.lengths, self.source_lens = self.lengths[chosen], self.source_lens[chosen]
        self._ancestors = self._ancestors[rows]
        if self.coverage is not None:
            self.coverage = self.coverage[rows, :, : self.source_lens.max()]
        self.slots = self.slots[chosen]
        # On a CPU nothing is copied, and the slots of other sentences are free.
        if self.device.type != "cpu" or len(set(sentences)) < len(sentences):
            index = to_device(self.slots, self.device)
            self.memories = [memory[index] for memory in self.memories]
            self._pools = [pool if pool is None else pool[index] for pool in self._pools]
            self._num_slots = len(sentences)
            self.slots = np.arange(len(sentences), dtype=np.int64)
        self._changed()

    def extend(self, others: DecoderState) -> None:
        """Add sentences that have read nothing yet, after the others."""
        count = len(others)
        free = np.setdiff1d(np.arange(self._num_slots, dtype=np.int64), self.slots)
        more = max(0, count - len(free))
        if more and self.device.type == "cpu":  # where `keep` leaves slots free
            more = max(more, self._num_slots)
        free = np.append(free, np.arange(self._num_slots, self._num_slots + more))
        self._num_slots += more
        slots = free[:count]
        index = to_device(slots, self.device)
        for layer, (own, new) in enumerate(zip(self.memories, others.memories, strict=True)):
            if more or new.shape[1] > own.shape[1]:
                longest = max(own.shape[1], new.shape[1])
                self.memories[layer] = self._moved(own, longest, own.shape[1])
            self.memories[layer][index, : new.shape[1]] = new
        if more:
            self._move_pools()
        self.slots = np.concatenate([self.slots, slots])
        self.lengths = np.concatenate([self.lengths, others.lengths])
        self.source_lens = np.concatenate([self.source_lens, others.source_lens])
        self._ancestors = F.pad(self._ancestors, (0, 0, 0, 0, 0, count))
        if self.coverage is not None:
            longer = max(0, int(others.source_lens.max()) - self.coverage.shape[2])
            self.coverage = F.pad(self.coverage, (0, longer, 0, 0, 0, count))
        self._changed()


def to_device(x: NDArray[np.int64], device: torch.device) -> Tensor:
    """Copy numbers of the host without waiting for the device."""
    return torch.from_numpy(x).to(device, non_blocking=True)


def attend_cached(
    queries: Tensor, pool: Tensor, visible: Visible | None, num_heads: int, *, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    """Attend from the newest tokens, (B, Q, D or more), to keys and values, (P, columns, 2D).

    visible: None for a first step of several tokens, each of which attends to those up to itself.
    Returns (B, Q, D) and, if they are needed, the weights, (B, H, Q, columns).
    """
    dim = pool.shape[2] // 2
    # The kernel reads cached columns one by one: for many queries torch's attention is faster.
    single = pool.device.type == "cpu" and pool.dtype == torch.float32
    few = queries.shape[1] <= FEW and not need_weights and not queries.requires_grad
    if visible and single and few:
        from seq2seq.machine import kernels  # which not every command has to load

        columns = IN_ORDER if visible.columns is None else visible.columns.numpy()
        found = queries.new_empty(*queries.shape[:2], dim)
        arrays = queries.contiguous().numpy(), pool.numpy(), columns
        kernels.attend(*arrays, visible.slots, visible.lens, num_heads, found.numpy())
        return found, None
    used = pool if visible is None else visible.read(pool)
    heads = (queries[..., :dim], used[..., :dim], used[..., dim:])
    own, keys, values = (x.unflatten(-1, (num_heads, -1)).transpose(1, 2) for x in heads)
    mask = None if visible is None else visible.mask
    if not need_weights:
        found = F.scaled_dot_product_attention(
            own, keys, values, attn_mask=mask, is_causal=visible is None
        )
        return found.transpose(1, 2).flatten(2), None
    own = own * own.shape[-1] ** -0.5  # before the product, which might overflow fp16
    scores = (own @ keys.transpose(2, 3)).float()
    if visible is None:
        mask = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).tril_()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = scores.softmax(dim=-1)
    return (weights.to(values.dtype) @ values).transpose(1, 2).flatten(2), weights
