"""Decide for each training pair whether it is kept, dropped by a rule, or held out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby, islice

import numpy as np
from numpy.typing import NDArray

from seq2seq.config import PairsConfig
from seq2seq.errors import UserError
from seq2seq.preparation.cleaning import CODES, KEPT
from seq2seq.preparation.corpora import TextPair
from seq2seq.preparation.shards import Shard

Hashes = NDArray[np.uint64]
Indices = NDArray[np.int64]
"""Positions among all training pairs, ascending."""


class Selection:
    """The training pairs in shards, with a decision (verdict) for each."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        """Take the verdicts of the rules on single texts."""
        self.shards = shards
        rules: list[NDArray[np.uint8]] = [shard.column("rule") for shard in shards]
        self.verdicts = np.concatenate(rules)
        """KEPT or the code of a rule (`cleaning.CODES`) for each pair."""
        self.starts = list(accumulate(map(len, rules), initial=0))[:-1]
        """Position of each shard's first pair."""

    @property
    def kept(self) -> Indices:
        """The pairs that no rule has dropped yet."""
        return np.flatnonzero(self.verdicts == KEPT)

    def dropped(self) -> dict[str, int]:
        """Return the number of pairs that each rule has dropped."""
        counts = np.bincount(self.verdicts, minlength=len(CODES) + 1).tolist()
        return {rule: counts[code] for rule, code in CODES.items() if counts[code]}

    def by_shard(self) -> Iterator[tuple[Shard, NDArray[np.uint8]]]:
        """Yield each shard with its verdicts, a view that may be written to."""
        return zip(self.shards, np.split(self.verdicts, self.starts[1:]), strict=True)

    def pairs(self, indices: Indices) -> Iterator[TextPair]:
        """Read some pairs."""
        parts = np.split(indices, np.searchsorted(indices, self.starts[1:]))
        for shard, start, part in zip(self.shards, self.starts, parts, strict=True):
            if len(part):
                yield from shard.pairs(part - start)

    def sample(self, size: int) -> Iterator[TextPair]:
        """Yield about `size` kept pairs, or all; whether a pair is one depends on its hash."""
        share, kept = size / max(1, len(self.verdicts)), self.kept
        if share < 1:
            kept = kept[self._column("pair_hash")[kept] < np.uint64(2**64 * share)]
        return self.pairs(kept)

    def drop_duplicates(self) -> None:
        """Drop each kept pair that equals an earlier one."""
        kept = self.kept
        hashes = self._column("pair_hash")[kept]
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        self.verdicts[kept[order[1:][hashes[1:] == hashes[:-1]]]] = CODES["duplicates"]

    def drop_overlap(self, evaluation: Sequence[Shard]) -> None:
        """Drop the kept pairs whose source is in the development or test set."""
        known = np.sort(np.concatenate([shard.column("source_hash") for shard in evaluation]))
        self.verdicts[self._among(self._column("source_hash"), known)] = CODES["overlap"]

    def hold_out(self, data: PairsConfig) -> dict[str, Indices]:
        """Return a development and test set of the sizes that the recipe names.

        They have the sources of the first corpus with the smallest hashes, each with its first
        target; all pairs of all corpora with these sources are dropped. Raises UserError if there
        are too few.
        """
        count = data.dev_size + data.test_size
        if not count:
            return {}
        column = self._column("source_hash")
        kept, own = self.kept, [shard.corpus for shard in self.shards].count(self.shards[0].corpus)
        end = [*self.starts, len(self.verdicts)][own]
        distinct = groupby(np.sort(column[kept[kept < end]]))  # np.unique takes several seconds
        chosen = np.array([value for value, _ in islice(distinct, count)], dtype=np.uint64)
        if len(chosen) < count:
            raise UserError(
                f"data.dev_size + data.test_size = {count}, but after cleaning the first "
                f"training corpus has only {len(chosen)} different sources: hold fewer out, such "
                f"as {max(1, len(chosen) // 10)}"
            )
        found = self._among(column, chosen)
        self.verdicts[found] = CODES["held_out"]
        _, first = np.unique(column[found], return_index=True)
        dev, test = np.split(found[first], [data.dev_size])
        return {split: np.sort(part) for split, part in [("dev", dev), ("test", test)] if len(part)}

    def _among(self, column: Hashes, known: Hashes) -> Indices:
        """Return the kept pairs whose hashes, in a column, are among known ones, in order."""
        kept = self.kept
        hashes = column[kept]
        return kept[known[np.searchsorted(known[:-1], hashes)] == hashes]

    def _column(self, name: str) -> Hashes:
        return np.concatenate([shard.column(name) for shard in self.shards])
