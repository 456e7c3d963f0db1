"""Attention of the newest tokens of a search on a CPU, compiled when it is first used.

A sentence's hypotheses attend to different columns of its pool. Products of batches of such small
matrices take several times as long.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seq2seq.machine.kernels import compiled, exponentials


@compiled("float32(f4[:,:,::1], f4[:,:,::1], i4[:,:,::1], i8[::1], i8[::1], i8, f4[:,:,::1])")
def attend(
    queries: NDArray[Any], pool: NDArray[Any], columns: NDArray[Any], places: NDArray[Any],
    lens: NDArray[Any], num_heads: int, found: NDArray[Any],
) -> float:  # fmt: skip
    """Fill `found`, (B, Q, D); columns: (B, Q, L), or empty for the first of the pool.

    The result stands for nothing.
    """
    count, width, dim = found.shape
    size = dim // num_heads
    scale = np.float32(1 / math.sqrt(size))
    longest = lens.max()
    weights = np.empty(longest, dtype=np.float32)
    bits = np.empty(longest, dtype=np.int32)
    where = np.arange(longest)
    read = np.float32(0)
    for sentence in range(count):
        length, place = lens[sentence], places[sentence]
        for query in range(width):
            if columns.shape[0]:
                for i in range(length):
                    where[i] = columns[sentence, query, i]
            # Heads read short pieces of each row, which no processor prefetches. Here rows are read
            # from first to last once, so that the heads find them in the cache.
            if columns.shape[0] or not query:
                for i in range(length):
                    row = pool[place, where[i]]
                    for k in range(2 * dim):
                        read += row[k]
            for head in range(num_heads):
                first, end = head * size, (head + 1) * size
                own = queries[sentence, query, first:end]
                highest = np.float32(-np.inf)
                for i in range(length):
                    key = pool[place, where[i], first:end]
                    score = np.float32(0)
                    for k in range(size):
                        score += own[k] * key[k]
                    weights[i] = score * scale
                    highest = max(highest, weights[i])
                own_weights = weights[:length]
                total = exponentials(own_weights, highest, bits, own_weights)
                result = found[sentence, query, first:end]
                result[:] = np.float32(0)
                for i in range(length):
                    value = pool[place, where[i], dim + first : dim + end]
                    for k in range(size):
                        result[k] += weights[i] * value[k]
                for k in range(size):
                    result[k] /= total
    return read
