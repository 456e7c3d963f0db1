"""Signs of bad translations: repetitions, and parts of the source that are left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from torch import Tensor

MIN_REPEATED = 6
"""Fewer tokens are too few for a repetition: `very very very` is none."""
RETRY_NGRAM = 3
"""Length of the n-grams that a second search blocks."""
SHORT = 0.4
"""A translation of fewer tokens per source token may leave something out."""
UNCOVERED = 0.5
"""Share of the average attention below which a sentence of the source is left out."""

_SENTENCE_BREAK = re.compile(r"(?<=[.!?])\s+(?=\S)|(?<=[。！？])(?=\S)")


def repeated(tokens: Sequence[int]) -> int:
    """Return the length of the longest part of a sequence that is an n-gram three times or more.

    0 if no such part has `MIN_REPEATED` tokens.
    """
    counts = Counter(tokens).values()
    if sum(count for count in counts if count >= 3) < MIN_REPEATED:  # the usual case
        return 0
    ids = np.array(tokens)
    longest = 0
    for n in range(1, len(ids) // 3 + 1):
        differ = np.flatnonzero(ids[n:] != ids[:-n])
        ends = np.concatenate([[-1], differ, [len(ids) - n]])
        equal = int(np.diff(ends).max()) - 1
        if equal >= 2 * n and equal + n >= MIN_REPEATED:
            longest = max(longest, equal + n)
    return longest


def repeats_itself(source: Sequence[int], target: Sequence[int]) -> bool:
    """Return whether a translation repeats itself at twice the length that its source does."""
    length = repeated(target)
    return bool(length) and length >= 2 * repeated(source)


def sentences_of(text: str) -> list[str]:
    """Split a text at its sentence ends."""
    return _SENTENCE_BREAK.split(text.strip())


def may_omit(source: str, target: str, source_len: int, target_len: int) -> bool:
    """Return whether lengths suggest that a translation leaves something out."""
    if len(sentences_of(target)) < len(sentences_of(source)):
        return True
    return target_len < SHORT * source_len and source_len >= 2 * MIN_REPEATED


def omits(attention: Tensor, parts: Sequence[int]) -> bool:
    """Return whether the attention leaves out a part of the source.

    attention: (T, S), of the target tokens to the source with its end symbol. parts: number of
    tokens of each sentence of the source.
    """
    coverage = attention.sum(dim=0)[: sum(parts)]
    means = [float(part.mean()) for part in coverage.split(list(parts)) if len(part)]
    return len(means) > 1 and min(means) < UNCOVERED * float(coverage.mean())
