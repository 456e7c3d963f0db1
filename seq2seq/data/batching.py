"""Split an epoch into updates, and updates into micro-batches for each process.

The order of sentences depends only on seed and epoch. Updates are consecutive slices of this order
with about `batch_tokens` tokens (target tokens; for a classifier, input tokens). So
`(epoch, offset)` is a position in the data for any number of processes and any batch size. The
sentences of an update are sorted by length and distributed to processes and micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from seq2seq.data.packing import row_lens

Indices = NDArray[np.int64]
"""Indices of sentences: in the training data or in a list."""
Lens = NDArray[np.integer]


def sentence_order(
    corpus_sizes: Sequence[int], corpus_weights: Sequence[float], *, seed: int, epoch: int
) -> Indices:
    """Return the indices of the sentences of one epoch, in training order.

    A corpus of weight 2.3 occurs twice, and a random 30 % of its sentences a third time.
    """
    random = np.random.Generator(np.random.PCG64([seed, epoch]))
    parts = []
    start = 0
    for size, weight in zip(corpus_sizes, corpus_weights, strict=True):
        whole = int(weight)
        indices = np.arange(start, start + size)
        extra = random.permutation(indices)[: round((weight - whole) * size)]
        parts += [indices] * whole + [extra]
        start += size
    order = random.permutation(np.concatenate(parts))
    # An epoch has at least one sentence, even of a tiny corpus with a small weight.
    return order if len(order) else random.integers(0, start, 1)


def updates(order: Indices, lens: Lens, batch_tokens: int, offset: int = 0) -> Iterator[Indices]:
    """Split the order, from sentence `offset` on, into updates of at most `batch_tokens` tokens.

    lens: number of tokens of each sentence in `order`. An update has at least one sentence, and the
    last update includes a remainder of less than half of `batch_tokens`.
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


def shard(lens: Lens, process: int, num_processes: int) -> Indices:
    """Return the ascending indices of the sentences of an update that one process trains on.

    Sentences are sorted by length and assigned round-robin, so that shards are about equal.
    """
    return np.sort(np.argsort(-lens, kind="stable")[process::num_processes])


def micro_batches(*input_lens: Lens, max_tokens: int) -> list[Indices]:
    """Split a process's shard of an update into micro-batches: arrays of indices into the shard.

    Sentences are sorted by length and assigned round-robin to the smallest number of micro-batches
    in which no input has more than `max_tokens` tokens, except for a single longer sentence. So a
    micro-batch has sentences of all lengths: short ones fill the rows of attention
    (`packing.row_lens`) that long ones leave partly empty.
    input_lens: for each input of the model, the number of tokens of each sentence.
    """
    lens = np.stack(input_lens)

    def size(indices: Indices) -> int:
        return int(lens[:, indices].sum(axis=1).max())

    order = np.argsort(-lens.max(axis=0), kind="stable")
    count = max(1, -(-size(order) // max_tokens))
    while count < len(order) and any(size(order[i::count]) > max_tokens for i in range(count)):
        count += 1
    return [order[i::count] for i in range(min(count, len(order)))]


def worst_case_lens(longest: int, max_tokens: int) -> list[int]:
    """Return sentence lengths, `max_tokens` in all, for which attention needs the most memory.

    The longest sentence determines the length of rows. The other sentences are as short as possible
    while a row holds no more of them than of the longest: that leaves the most padding, up to half
    of a row. The last sentence has the remaining tokens.
    """
    [row_len] = row_lens([longest])
    # The shortest length that also fits only row_len // longest times into a row.
    other = row_len // (row_len // longest + 1) + 1
    lens = [longest] + [other] * max(0, (max_tokens - longest) // other)
    rest = max_tokens - sum(lens)
    return [*lens, rest] if rest > 0 else lens
