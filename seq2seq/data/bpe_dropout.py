"""BPE-dropout: segment a text differently each time by dropping random merges.

SentencePiece has it too, but its random numbers cannot be reproduced in another process or after a
resume. Here they come from the given generator.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

import numpy as np

from seq2seq.data.sentencepiece_file import NORMAL, read_pieces
from seq2seq.data.store import Ids
from seq2seq.data.vocabulary import Vocabulary

CACHED = 100_000
"""Number of cached results of `_merge`, most of them of frequent words."""


class BPEDropout:
    """Drops merges of a SentencePiece BPE model (Provilkov et al. 2020, algorithm 1).

    As in SentencePiece, each merge is dropped with the given probability when it is next in order,
    and is not tried again.
    """

    def __init__(self, vocabulary: Vocabulary, probability: float) -> None:
        self.probability = probability
        costs = {p.text: -p.score for p in read_pieces(vocabulary.model) if p.type == NORMAL}
        texts = vocabulary.pieces(range(vocabulary.size))
        self._normal = {text: (costs[text], i) for i, text in enumerate(texts) if text in costs}
        # Pieces that single-character pieces cannot spell are not split, like symbols and bytes.
        self._texts = [
            text if text in self._normal and all(c in self._normal for c in text) else None
            for text in texts
        ]
        self._neighbours = {pair for text in self._normal for pair in pairwise(text)}
        self._merge = lru_cache(CACHED)(self._compute_merges)

    def __call__(self, row: Ids, random: np.random.Generator) -> Ids:
        """Segment the text of a row again; deterministic for a given state of the generator."""
        drops = _drops(random, self.probability)
        drop = next(drops)
        ids: list[int] = []
        start = 0
        for unit in self._units(row.tolist()):
            if isinstance(unit, int):
                ids.append(unit)
                continue
            dropped: tuple[int, ...] = ()
            merged, num_merges = self._merge(unit, dropped)
            while drop < start + num_merges:
                dropped += (drop - start,)
                drop = next(drops)
                merged, num_merges = self._merge(unit, dropped)
            ids += merged
            start += num_merges
        return np.array(ids, dtype=np.int32)

    def _units(self, ids: list[int]) -> Iterator[str | int]:
        """Yield texts that no merge joins with the next one, and ids that are never split."""
        unit = ""
        for i in ids:
            text = self._texts[i]
            if unit and (text is None or (unit[-1], text[0]) not in self._neighbours):
                yield unit
                unit = ""
            if text is None:
                yield i
            else:
                unit += text
        if unit:
            yield unit

    def _compute_merges(self, text: str, dropped: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """Return the pieces of a text without the merges `dropped`, and the number of merges.

        Merges are numbered in their order: by score, then from the left.
        """
        symbols = list(text)
        costs = [self._cost(left + right) for left, right in pairwise(symbols)]
        count = 0
        # A list, not a heap: words are short.
        while costs and (cheapest := min(costs)) < math.inf:
            place = costs.index(cheapest)
            count += 1
            if count - 1 in dropped:
                costs[place] = math.inf
                continue
            symbols[place] += symbols.pop(place + 1)
            costs.pop(place)
            if place:
                costs[place - 1] = self._cost(symbols[place - 1] + symbols[place])
            if place < len(costs):
                costs[place] = self._cost(symbols[place] + symbols[place + 1])
        # Not lists: the garbage collector visits each in the cache, for 0.2 s every few updates.
        return tuple(self._normal[symbol][1] for symbol in symbols), count

    def _cost(self, merged: str) -> float:
        """Return the negated score of a piece; infinite if it is none."""
        piece = self._normal.get(merged)
        return piece[0] if piece else math.inf


def _drops(random: np.random.Generator, probability: float) -> Iterator[int]:
    """Yield the positive ones of a sequence of Bernoulli trials, by number."""
    number = -1
    while True:
        for gap in random.geometric(probability, 16).tolist():
            number += gap
            yield number
