"""Which training pairs are kept: the rules, their order, and how many pairs each dropped."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import xxhash
from numpy.typing import NDArray

from seq2seq.config import CleaningConfig

RULES = {
    "blank": "a side is blank",
    "max_ratio": "the sides' lengths differ too much",
    "duplicates": "the pair came before",
    "overlap": "the source is in dev or test",
    "held_out": "moved to dev or test",
    "max_len": "a side has too many tokens",
}
"""What drops a training pair, in the order in which the rules are asked."""

RATIO_FREE_CHARACTERS = 20
"""Short sentences may differ by any ratio: `OK` is `Einverstanden`."""


def text_hash(*texts: str) -> int:
    """Return 64 bits that stand for the texts; white space of any kind and length is one space."""
    folded = "\n".join(" ".join(text.split()) for text in texts)
    return xxhash.xxh3_64_intdigest(folded.encode())


class HashSet:
    """A fixed set of 64-bit hashes in a sorted array: eight bytes each, where a set takes 60."""

    def __init__(self, hashes: Iterable[int] | NDArray[np.uint64]) -> None:
        if not isinstance(hashes, np.ndarray):
            hashes = np.fromiter(hashes, dtype=np.uint64)
        self._sorted = np.unique(hashes)
        self._taken = np.zeros(len(self._sorted), dtype=bool)

    def __len__(self) -> int:
        return len(self._sorted)

    def _place(self, value: int) -> int | None:
        place = int(np.searchsorted(self._sorted, np.uint64(value)))
        found = place < len(self._sorted) and int(self._sorted[place]) == value
        return place if found else None

    def __contains__(self, value: int) -> bool:
        return self._place(value) is not None

    def reset(self) -> None:
        """Unmark every member."""
        self._taken[:] = False

    def take(self, value: int) -> bool:
        """Mark a member; returns False if it was marked before (or is no member)."""
        place = self._place(value)
        if place is None or self._taken[place]:
            return False
        self._taken[place] = True
        return True


def repeated(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the values that occur more than once; sorts `hashes` in place."""
    hashes.sort()
    return np.unique(hashes[1:][hashes[1:] == hashes[:-1]])


def is_blank(source: str, target: str) -> bool:
    """Say whether a side is empty or white space."""
    return not source.strip() or not target.strip()


def is_uneven(source: str, target: str, max_ratio: float) -> bool:
    """Say whether one side has more than `max_ratio` times the characters of the other."""
    shorter, longer = sorted((len(source), len(target)))
    return longer > RATIO_FREE_CHARACTERS and longer > max_ratio * shorter


def text_rule(config: CleaningConfig, source: str, target: str) -> str | None:
    """Return the first rule that the text alone breaks, or None."""
    if config.blank and is_blank(source, target):
        return "blank"
    if config.max_ratio is not None and is_uneven(source, target, config.max_ratio):
        return "max_ratio"
    return None
