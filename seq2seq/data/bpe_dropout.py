"""BPE-dropout: segment a text differently each time by dropping random merges.

SentencePiece implements it too, but its random numbers cannot be reproduced in another process or
on resume. Here they come from a given generator.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import sentencepiece

from seq2seq.data.store import Ids
from seq2seq.data.vocabulary import Vocabulary

CACHED = 100_000
"""Size of the cache of segmented words."""


class BPEDropout:
    """Drops merges of a SentencePiece BPE model (Provilkov et al. 2020, algorithm 1).

    As in SentencePiece, a merge is dropped with the given probability when its turn comes, and is
    not tried again.
    """

    def __init__(self, vocabulary: Vocabulary, probability: float) -> None:
        self.probability = probability
        model = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.model)
        costs = _costs(model)
        texts = vocabulary.pieces(range(vocabulary.size))
        self._ids = {text: i for i, text in enumerate(texts) if text in costs}
        self._costs = {text: costs[text] for text in self._ids}
        # Symbols, bytes and pieces with characters outside the vocabulary are never split.
        self._texts = [text if {text, *text} <= self._ids.keys() else None for text in texts]
        self._neighbours = {pair for text in self._ids for pair in pairwise(text)}
        self._merge = lru_cache(CACHED)(self._compute_merges)

    def __call__(self, row: Ids, random: np.random.Generator) -> Ids:
        """Segment the text of token ids again; deterministic for a given generator state."""
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
        """Yield texts that can be segmented independently, and ids that are never split."""
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
        """Return the ids of a text segmented without the merges `dropped`, and the merge count.

        Merges are numbered in the order of their application: by score, then from the left.
        """
        symbols = list(text)
        costs = [self._costs.get(left + right, math.inf) for left, right in pairwise(symbols)]
        count = 0
        # A list, not a heap: words are short.
        while costs and (cheapest := min(costs)) < math.inf:
            index = costs.index(cheapest)
            count += 1
            if count - 1 in dropped:
                costs[index] = math.inf
                continue
            symbols[index] += symbols.pop(index + 1)
            costs.pop(index)
            if index:
                costs[index - 1] = self._costs.get(symbols[index - 1] + symbols[index], math.inf)
            if index < len(costs):
                costs[index] = self._costs.get(symbols[index] + symbols[index + 1], math.inf)
        # Not lists: the garbage collector would visit all in the cache, 0.2 s every few updates.
        return tuple(self._ids[symbol] for symbol in symbols), count


def _costs(model: Any) -> dict[str, float]:
    """Return the costs of ordinary pieces: no bytes, special or longer user-defined symbols."""
    tests = model.is_unknown, model.is_control, model.is_unused, model.is_byte
    ids = [i for i in range(len(model)) if not any(test(i) for test in tests)]
    pieces = [model.id_to_piece(i) for i in ids]
    # Without any merge, only user-defined symbols have more than one character.
    unmerged = model.encode(pieces, out_type=str, enable_sampling=True, alpha=1.0)
    return {
        piece: -model.get_score(i)
        for i, piece, parts in zip(ids, pieces, unmerged, strict=True)
        if len(piece) == 1 or piece not in parts
    }


def _drops(random: np.random.Generator, probability: float) -> Iterator[int]:
    """Yield the indices of successes in a sequence of Bernoulli trials."""
    number = -1
    while True:
        for gap in random.geometric(probability, 16).tolist():
            number += gap
            yield number
