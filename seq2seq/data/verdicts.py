"""What becomes of each training pair, once all have been read: kept, dropped or held out.

Of every pair there is a note of 17 bytes on the disk and a verdict of one byte in memory; the notes
are gone through in pieces, so that memory does not grow with what is sorted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seq2seq.data.cleaning import CODES, KEPT, require_left

NOTE = np.dtype([("rule", "u1"), ("pair", "<u8"), ("source", "<u8")])
"""What a first reading leaves of a pair: the rule its text breaks, its hash and its source's."""

SORTED_AT_ONCE = 2**23
"""Hashes; about 50 bytes each."""

Hashes = NDArray[np.uint64]
Verdicts = NDArray[np.uint8]
"""A code of `cleaning.CODES` for each pair, in order, or KEPT."""


class Notes:
    """The notes of all pairs, in files of one block each."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files

    def blocks(self) -> Iterator[NDArray[np.void]]:
        """Yield the notes of one block after the other."""
        return (np.load(path, mmap_mode="r") for path in self._files)

    def rules(self) -> Verdicts:
        """Return what the texts alone say."""
        # Copied: a view would keep its file open, and there may be thousands.
        return np.concatenate([np.array(block["rule"]) for block in self.blocks()])

    def with_verdicts(self, verdicts: Verdicts) -> Iterator[tuple[NDArray[np.void], Verdicts]]:
        """Yield each block's notes beside its part of the verdicts, which may be written to."""
        start = 0
        for block in self.blocks():
            yield block, verdicts[start : start + len(block)]
            start += len(block)


def require_kept(verdicts: Verdicts) -> None:
    """Raise UserError if no pair is kept."""
    counts = np.bincount(verdicts, minlength=len(CODES) + 1).tolist()
    dropped = {rule: counts[code] for rule, code in CODES.items() if counts[code]}
    require_left(counts[KEPT], dropped)


def drop_duplicates(notes: Notes, verdicts: Verdicts) -> None:
    """Drop each kept pair whose like was kept before."""
    parts = 1 << max(0, (len(verdicts) - 1) // SORTED_AT_ONCE).bit_length()
    for part in range(parts):
        places, hashes = [], []
        start = 0
        for block, codes in notes.with_verdicts(verdicts):
            chosen = codes == KEPT
            if parts > 1:  # by the highest bits
                chosen &= block["pair"] >> np.uint64(64 - (parts - 1).bit_length()) == part
            places.append(start + np.flatnonzero(chosen))
            hashes.append(block["pair"][chosen])
            start += len(block)
        place, value = np.concatenate(places), np.concatenate(hashes)
        del places, hashes
        order = np.argsort(value, kind="stable")
        value = value[order]
        verdicts[place[order[1:][value[1:] == value[:-1]]]] = CODES["duplicates"]


def drop_sources(notes: Notes, verdicts: Verdicts, sources: Hashes, rule: str) -> None:
    """Give the kept pairs with one of these sources the verdict of a rule."""
    if len(sources):
        for block, codes in notes.with_verdicts(verdicts):
            codes[(codes == KEPT) & np.isin(block["source"], sources)] = CODES[rule]


def smallest_sources(notes: Notes, verdicts: Verdicts, count: int) -> Hashes:
    """Return the `count` smallest different hashes of kept sources, ascending, or all there are."""
    smallest = np.zeros(0, dtype=np.uint64)
    if count:
        for block, codes in notes.with_verdicts(verdicts):
            found = block["source"][codes == KEPT]
            smallest = np.unique(np.concatenate([smallest, found]))[:count]
    return smallest


def sampled(notes: Notes, verdicts: Verdicts, count: int) -> Iterator[NDArray[np.bool_]]:
    """Yield for each block which of its kept pairs belong to a sample of about `count`.

    A pair is drawn by its own hash; its source's decided on holding out.
    """
    share = min(1.0, count / max(1, len(verdicts)))
    bound = np.uint64(min(2**64 - 1, int(2**64 * share)))
    for block, codes in notes.with_verdicts(verdicts):
        yield (codes == KEPT) & ((block["pair"] < bound) | (share == 1))
