"""Split an epoch into updates, and updates into micro-batches for each process.

The order of sentences depends on seed and epoch only. Updates are consecutive slices of it, each of
up to `batch_tokens` target tokens; so `(epoch, offset)` is a position in the data for any number of
processes and any batch size. The sentences of an update are sorted by length and distributed to
processes and micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from seq2seq.data.packing import row_lens

Order = NDArray[np.int64]
Lens = NDArray[np.int32]


def sentence_order(
    corpus_sizes: Sequence[int], corpus_weights: Sequence[float], *, seed: int, epoch: int
) -> Order:
    """Return the sentence numbers of one epoch, in the order of training.

    A corpus of weight 2.3 occurs twice, and a random 30 % of it once more.
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


def updates(order: Order, lens: Lens, batch_tokens: int, offset: int = 0) -> Iterator[Order]:
    """Split the order, from sentence `offset` on, into updates of at most `batch_tokens` tokens.

    lens: number of tokens of each, in this order. A remainder of less than half an update is added
    to the last one.
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


def share(lens: Lens, process: int, num_processes: int) -> Order:
    """Return the sentences of an update that one process trains on: ascending indices into it.

    Sorted by length, they are dealt in turn, so that all shares are about equal.
    """
    return np.sort(np.argsort(-lens, kind="stable")[process::num_processes])


def micro_batches(source_lens: Lens, target_lens: Lens, *, max_tokens: int) -> list[Order]:
    """Split a process's share of an update into micro-batches: lists of indices into it.

    They are about equal, as few as have at most `max_tokens` on the longer side. Each has sentences
    of all lengths, which are easier to arrange in the rows of attention.
    """
    lens = np.stack([source_lens, target_lens])

    def size(indices: Order) -> int:
        """Return the number of tokens on the longer side."""
        return int(lens[:, indices].sum(axis=1).max())

    order = np.argsort(-lens.max(axis=0), kind="stable")
    count = max(1, -(-size(order) // max_tokens))
    while count < len(order) and any(size(order[i::count]) > max_tokens for i in range(count)):
        count += 1
    return [order[i::count] for i in range(min(count, len(order)))]


def worst_lens(longest: int, max_tokens: int) -> list[int]:
    """Return the lengths of sentences for which attention needs the most memory.

    They are the longest sentence, which determines the length of rows, others of which as few as
    possible share a row, and one for the rest of the tokens.
    """
    [row] = row_lens([longest])
    # One more in a row than of the longest does not fit.
    other = row // (row // longest + 1) + 1
    lens = [longest] + [other] * max(0, (max_tokens - longest) // other)
    rest = max_tokens - sum(lens)
    return [*lens, rest] if rest > 0 else lens
