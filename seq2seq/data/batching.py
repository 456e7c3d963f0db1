"""Which sentences make an update, and how they are dealt out to processes and memory.

The order of sentences depends on seed and epoch alone. Updates are cut from it in order, each up
to a budget of target tokens; so `(epoch, offset)` names a place in the data, whatever the number
of processes and the size of a batch. An update's sentences are then sorted by length, dealt
to the processes, and again to micro-batches that fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from seq2seq.data.packing import window_lens

SHORT_LEN = 64
"""Sentences of up to so many tokens share micro-batches; so do those of up to twice, four times ...
as many."""

Order = NDArray[np.int64]


def sentence_order(
    *,
    corpus_sizes: Sequence[int],
    corpus_weights: Sequence[float],
    seed: int,
    epoch: int,
) -> Order:
    """Return the sentence numbers of one epoch, in the order of training.

    A corpus of weight 2.3 comes twice, and three tenths of it, drawn anew, once more.
    """
    random = np.random.Generator(np.random.PCG64([seed, epoch]))
    parts = []
    start = 0
    for size, weight in zip(corpus_sizes, corpus_weights, strict=True):
        whole = int(weight)
        numbers = np.arange(start, start + size)
        extra = random.permutation(numbers)[: round((weight - whole) * size)]
        parts += [numbers] * whole + [extra]
        start += size
    order = random.permutation(np.concatenate(parts))
    # A tiny corpus of small weight: an epoch has at least one sentence.
    return order if len(order) else random.integers(0, start, 1)


def updates(
    order: Order, lens: NDArray[np.int32], batch_tokens: int, offset: int = 0
) -> Iterator[Order]:
    """Cut the order, from sentence `offset` on, into updates of at most `batch_tokens` tokens.

    lens: the tokens of each, in this order. A rest of less than half an update joins the last one.
    """
    ends = np.cumsum(lens, dtype=np.int64)
    start = offset
    while start < len(order):
        done = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, done + batch_tokens, side="right")))
        if ends[-1] - ends[end - 1] < batch_tokens / 2:
            end = len(order)
        yield order[start:end]
        start = end


def micro_batches(
    source_lens: NDArray[np.int32],
    target_lens: NDArray[np.int32],
    *,
    max_tokens: int,
    num_processes: int = 1,
) -> list[list[Order]]:
    """Lay one update out for each process: lists of places in the update.

    The sentences are sorted by length and dealt like cards, to the processes and then to each one's
    micro-batches, of at most `max_tokens` on the longer side. Long sentences have micro-batches of
    their own, since the longest decides how much attention looks at.
    """
    longest = np.maximum(source_lens, target_lens)
    by_length = np.argsort(-longest, kind="stable")
    lens = np.stack([source_lens, target_lens])
    return [_cut(by_length[i::num_processes], lens, max_tokens) for i in range(num_processes)]


def _cut(places: Order, lens: NDArray[np.int32], max_tokens: int) -> list[Order]:
    """Deal sorted sentences out to micro-batches."""
    batches: list[Order] = []
    doublings = _doublings(lens[:, places].max(axis=0))
    for group in np.split(places, np.flatnonzero(np.diff(doublings)) + 1):
        count = max(1, -(-_size(group, lens) // max_tokens))
        hands = [group[i::count] for i in range(count)]
        # Each has sentences of all lengths, so that they fill windows well.
        while len(hands) < len(group) and any(_size(hand, lens) > max_tokens for hand in hands):
            hands = [group[i :: len(hands) + 1] for i in range(len(hands) + 1)]
        batches += [hand for hand in hands if len(hand)]
    return batches


def _doublings(lens: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return how often SHORT_LEN has to be doubled to be as long."""
    return np.frexp((lens - 1) // SHORT_LEN)[1]


def shortest_beside(longest: int) -> int:
    """Return the length of the shortest sentence that may share a micro-batch with `longest`."""
    doublings = int(_doublings(np.array([longest]))[0])
    return SHORT_LEN * 2 ** (doublings - 1) + 1 if doublings else 1


def _size(places: Order, lens: NDArray[np.int32]) -> int:
    """Return the tokens of these sentences on the longer side."""
    return int(lens[:, places].sum(axis=1).max())


def worst_lens(longest: int, max_tokens: int) -> list[int]:
    """Return the lengths of sentences for which attention needs the most room.

    That are sentences which fill little more than half of a window, beside one that decides how
    long the windows are: the longest of all, or the longest of those that never meet it.
    """

    def beside(first: int) -> list[int]:
        half = min(first, max(window_lens([first])[0] // 2 + 1, shortest_beside(first)))
        return [first] + [half] * max(0, (max_tokens - first) // half)

    lengths = [beside(first) for first in (longest, shortest_beside(longest) - 1) if first]
    return max(lengths, key=lambda lens: len(lens) * window_lens([lens[0]])[0] ** 2)
