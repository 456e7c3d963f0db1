"""Loops of a search on a CPU, compiled for the processor by numba.

All are in one file: numba compiles a cached function again only if its own file has changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])
GROUPS = 512
"""Token i is in group i modulo this: so the compiler compares whole vectors."""
REORDERED = {"reassoc", "contract", "nsz", "arcp"}
"""What may be done to sums and products to compute several at once. NaN stays NaN."""


def compiled(signature: str) -> Callable[[F], F]:
    """Compile a function for arguments of these types, once for all later processes."""

    def compile_function(function: F) -> F:
        try:
            kernel: Any = njit(signature, cache=True, fastmath=REORDERED, nogil=True)(function)
        except Exception:  # the cache cannot be written or read
            kernel = njit(signature, fastmath=REORDERED, nogil=True)(function)
        return cast(F, kernel)

    return compile_function


@njit(fastmath=REORDERED, inline="always")
def exponentials(x: NDArray[Any], shift: float, bits: NDArray[Any], found: NDArray[Any]) -> float:
    """Fill `found` with exp(x - shift), for x up to `shift`, and return the sum.

    The steps of Cephes' expf, in a form that the compiler makes vectors of: numba's own takes ten
    times as long. bits: (at least as long, int32), to write powers of two to. What is below e^-87
    is e^-87.
    """
    powers = bits.view(np.float32)
    for i in range(len(x)):
        exponent = max(x[i] - shift, np.float32(-87))
        power = np.floor(exponent * np.float32(1.44269504) + np.float32(0.5))
        rest = exponent - power * np.float32(0.693359375) + power * np.float32(2.12194440e-4)
        terms = np.float32(1.9875691500e-4) * rest + np.float32(1.3981999507e-3)
        terms = terms * rest + np.float32(8.3334519073e-3)
        terms = terms * rest + np.float32(4.1665795894e-2)
        terms = terms * rest + np.float32(1.6666665459e-1)
        terms = terms * rest + np.float32(5.0000001201e-1)
        found[i] = terms * rest * rest + rest + np.float32(1)
        bits[i] = (np.int32(power) + np.int32(127)) << np.int32(23)
    total = np.float32(0)
    for i in range(len(x)):
        found[i] *= powers[i]
        total += found[i]
    return total


@compiled("float32(f4[:,:,::1], f4[:,:,::1], i4[:,:,::1], i8[::1], i8[::1], i8, f4[:,:,::1])")
def attend(
    queries: NDArray[Any], pool: NDArray[Any], columns: NDArray[Any], slots: NDArray[Any],
    lens: NDArray[Any], num_heads: int, found: NDArray[Any],
) -> float:  # fmt: skip
    """Fill `found`, (B, Q, D); columns: (B, Q, L), or empty for the first of the pool.

    A sentence's hypotheses attend to different columns of its pool. Products of batches of such
    small matrices take several times as long. The result is there for the compiler, which would
    otherwise leave out what it is the sum of.
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
        length, slot = lens[sentence], slots[sentence]
        for query in range(width):
            if columns.shape[0]:
                for i in range(length):
                    where[i] = columns[sentence, query, i]
            # Heads read short pieces of each row, which no processor prefetches. Here rows are read
            # from first to last once, so that the heads find them in the cache.
            if columns.shape[0] or not query:
                for i in range(length):
                    row = pool[slot, where[i]]
                    for k in range(2 * dim):
                        read += row[k]
            for head in range(num_heads):
                first, end = head * size, (head + 1) * size
                own = queries[sentence, query, first:end]
                highest = np.float32(-np.inf)
                for i in range(length):
                    key = pool[slot, where[i], first:end]
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
                    value = pool[slot, where[i], dim + first : dim + end]
                    for k in range(size):
                        result[k] += weights[i] * value[k]
                for k in range(size):
                    result[k] /= total
    return read


@compiled("void(f4[:,:,::1], f4[:,::1], i8[::1], i8, b1[::1], f4[:,::1], i8[:,::1], i8[:,::1])")
def best_continuations(
    logits: NDArray[Any], live: NDArray[Any], never: NDArray[Any], eos_id: int,
    must_end: NDArray[Any], ranks: NDArray[Any], origins: NDArray[Any], tokens: NDArray[Any],
) -> None:  # fmt: skip
    """Fill the best continuations of each sentence, (B, count) each, the best first.

    logits: (B, W, V); those of tokens in `never` are overwritten. live: log-probabilities of the
    hypotheses, (B, W); -inf for none. must_end: (B,): where only `eos_id` may follow. Where fewer
    are possible, the ranks of the others are -inf; NaN if a logit is not a number.
    """
    size, width, vocab_size = logits.shape
    count = ranks.shape[1]
    maxima, folded = np.empty(GROUPS, dtype=np.float32), np.empty(GROUPS, dtype=np.float32)
    terms, bits = np.empty(GROUPS, dtype=np.float32), np.empty(GROUPS, dtype=np.int32)
    for sentence in range(size):
        rank, origin, token = ranks[sentence], origins[sentence], tokens[sentence]
        # What stands for no continuation must not end.
        rank[:], origin[:], token[:] = np.float32(-np.inf), 0, (eos_id + 1) % vocab_size
        for row in range(width):
            if live[sentence, row] == np.float32(-np.inf):
                continue
            own = logits[sentence, row]
            maxima[:] = np.float32(-np.inf)
            for start in range(0, vocab_size, GROUPS):
                part = own[start : start + GROUPS]
                for i in range(len(part)):
                    maxima[i] = part[i] if part[i] > maxima[i] else maxima[i]
            folded[:] = maxima
            half = GROUPS // 2
            while half:
                for i in range(half):
                    other = folded[half + i]
                    folded[i] = other if other > folded[i] else folded[i]
                half //= 2
            total = np.float32(0)
            for start in range(0, vocab_size, GROUPS):
                total += exponentials(own[start : start + GROUPS], folded[0], bits, terms)
            shift = np.float32(live[sentence, row] - folded[0] - math.log(total))
            if math.isnan(shift):
                rank[:] = np.float32(np.nan)
                break
            for forbidden in never:
                own[forbidden] = np.float32(-np.inf)
            for group in range(GROUPS):
                if maxima[group] + shift <= rank[count - 1]:
                    continue
                for i in range(group, vocab_size, GROUPS):
                    value = own[i] + shift
                    if value <= rank[count - 1] or (must_end[sentence] and i != eos_id):
                        continue
                    position = count - 1
                    while position and rank[position - 1] < value:
                        rank[position], origin[position] = rank[position - 1], origin[position - 1]
                        token[position] = token[position - 1]
                        position -= 1
                    rank[position], origin[position], token[position] = value, row, i
