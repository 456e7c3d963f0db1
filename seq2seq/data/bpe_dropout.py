"""BPE-dropout: the same text in other pieces each time, since merges are left out at random.

SentencePiece can do it too, but its draws are neither the same in two processes nor after a resume.
Here they are a function of what the generator was made from.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np

from seq2seq.data.sentencepiece_file import NORMAL, read_pieces
from seq2seq.data.store import Ids

CACHED = 100_000
"""Results of `_merge` that are kept: words, most of them frequent ones."""


class BPEDropout:
    """Leaves out merges of one SentencePiece BPE model (Provilkov et al. 2020, algorithm 1).

    As in SentencePiece, each merge is left out at the given probability when its turn comes, and
    does not come again.
    """

    def __init__(self, model: bytes, probability: float) -> None:
        """model: the content of the file."""
        self.probability = probability
        pieces = read_pieces(model)
        self._normal = {
            piece.text: (-piece.score, i) for i, piece in enumerate(pieces) if piece.type == NORMAL
        }
        # What cannot be spelled in pieces of one character stays whole, as symbols and bytes do.
        self._texts = [
            piece.text
            if piece.type == NORMAL and all(character in self._normal for character in piece.text)
            else None
            for piece in pieces
        ]
        self._neighbours = {pair for text in self._normal for pair in pairwise(text)}
        self._merge = lru_cache(CACHED)(self._merge_anew)

    def __call__(self, row: Ids, random: np.random.Generator) -> Ids:
        """Cut the text of a row into other pieces; the same for a generator in the same state."""
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
        """Yield texts that no merge joins with the next, and ids that stay as they are."""
        unit = ""
        for i in ids:
            text = self._texts[i] if i < len(self._texts) else None
            if unit and (text is None or (unit[-1], text[0]) not in self._neighbours):
                yield unit
                unit = ""
            if text is None:
                yield i
            else:
                unit += text
        if unit:
            yield unit

    def _merge_anew(self, text: str, dropped: tuple[int, ...]) -> tuple[list[int], int]:
        """Return a text's pieces if the merges of these numbers are left out; and how many came up.

        The numbers count what comes up, in order of score and then from the left.
        """
        symbols = list(text)  # empty once merged into the one on the left
        before = [*range(-1, len(text) - 1)]
        after = [*range(1, len(text) + 1)]
        waiting: list[tuple[float, int, int, str]] = []

        def propose(left: int, right: int) -> None:
            if left >= 0 and right < len(symbols):
                merged = symbols[left] + symbols[right]
                if merged in self._normal:
                    heappush(waiting, (self._normal[merged][0], left, right, merged))

        for left in range(len(text) - 1):
            propose(left, left + 1)
        count = 0
        while waiting:
            _, left, right, merged = heappop(waiting)
            if not symbols[left] or not symbols[right] or symbols[left] + symbols[right] != merged:
                continue
            count += 1
            if count - 1 in dropped:
                continue
            symbols[left], symbols[right] = merged, ""
            after[left] = after[right]
            if after[left] < len(symbols):
                before[after[left]] = left
            propose(before[left], left)
            propose(left, after[left])
        return [self._normal[symbol][1] for symbol in symbols if symbol], count


def _drops(random: np.random.Generator, probability: float) -> Iterator[int]:
    """Yield the numbers of those decisions, in a long row of them, that say yes."""
    number = -1
    while True:
        for gap in random.geometric(probability, 16).tolist():
            number += gap
            yield number
