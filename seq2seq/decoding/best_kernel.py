"""The best continuations of hypotheses on a CPU, compiled when it is first used.

One pass over the logits for the maxima of groups of tokens, and one for the normaliser; only groups
whose maximum is among the best are looked at again.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seq2seq.machine.kernels import compiled, exponentials

GROUPS = 512
"""Token i is in group i modulo this: so the compiler compares whole vectors."""


@compiled("void(f4[:,:,::1], f4[:,::1], i8[::1], i8, b1[::1], f4[:,::1], i8[:,::1], i8[:,::1])")
def best(
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
                    place = count - 1
                    while place and rank[place - 1] < value:
                        rank[place], origin[place] = rank[place - 1], origin[place - 1]
                        token[place] = token[place - 1]
                        place -= 1
                    rank[place], origin[place], token[place] = value, row, i
