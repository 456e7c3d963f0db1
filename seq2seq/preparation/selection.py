"""Decide for each training pair whether it is kept, dropped by a rule, or held out.

The decision (verdict) takes one byte per pair in memory. Hashes are read shard by shard, so that
memory does not grow with what is sorted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seq2seq.config import PairsConfig
from seq2seq.errors import UserError
from seq2seq.preparation.cleaning import CODES, KEPT, require_left
from seq2seq.preparation.corpora import TextPair
from seq2seq.preparation.shards import Hashes, Shard

SORTED_AT_ONCE = 2**23
"""Number of hashes sorted at once; about 50 bytes each."""

Verdicts = NDArray[np.uint8]
"""KEPT or the code of a rule (`cleaning.CODES`) for each pair."""


@dataclass(frozen=True)
class Selection:
    """The training pairs in shards, with their verdicts."""

    shards: Sequence[Shard]
    verdicts: Verdicts
    held_out: dict[int, str]
    """`dev` or `test` for the hash of each held-out source sentence."""

    @classmethod
    def of(
        cls,
        data: PairsConfig,
        shards: Sequence[Shard],
        evaluation: Sequence[Shard],
    ) -> Selection:
        """Apply the rules that compare pairs: duplicates, overlap, and held-out pairs.

        evaluation: shards of development and test set. Raises UserError if too few pairs are left.
        """
        selection = cls(shards, np.concatenate([shard.column("rule") for shard in shards]), {})
        if data.clean.duplicates:
            selection.drop_duplicates()
        if data.clean.overlap and evaluation:
            hashes = np.concatenate([shard.column("source_hash") for shard in evaluation])
            selection.drop_sources(np.unique(hashes), "overlap")
        count = data.dev_size + data.test_size
        chosen = selection.smallest_sources(count)
        if len(chosen) < count:
            share = max(1, len(chosen) // 10)
            sizes = {"dev": data.dev_size, "test": data.test_size}
            smaller = " ".join(f"data.{name}_size={share}" for name, size in sizes.items() if size)
            raise UserError(
                f"data.dev_size + data.test_size = {count}, but after cleaning the training "
                f"corpora have only {len(chosen)} different sources: hold fewer out, such as "
                f"{smaller}"
            )
        selection.drop_sources(chosen, "held_out")
        require_left(int((selection.verdicts == KEPT).sum()), selection.dropped())
        for rank, value in enumerate(chosen.tolist()):
            selection.held_out[value] = "dev" if rank < data.dev_size else "test"
        return selection

    def with_verdicts(self) -> Iterator[tuple[Shard, Verdicts]]:
        """Yield each shard with its verdicts, a view that may be written to."""
        start = 0
        for shard in self.shards:
            verdicts = self.verdicts[start : start + len(shard)]
            yield shard, verdicts
            start += len(verdicts)

    def dropped(self) -> dict[str, int]:
        """Return the number of pairs that each rule has dropped."""
        counts = np.bincount(self.verdicts, minlength=len(CODES) + 1).tolist()
        return {rule: counts[code] for rule, code in CODES.items() if counts[code]}

    def examples(self, count: int) -> dict[str, list[TextPair]]:
        """Return the first `count` pairs that each rule has dropped, for people to look at."""
        found: dict[str, list[TextPair]] = {rule: [] for rule in self.dropped()}
        for shard, verdicts in self.with_verdicts():
            for rule, own in found.items():
                indices = np.flatnonzero(verdicts == CODES[rule])[: count - len(own)]
                own += shard.pairs(indices) if len(indices) else []
        return found

    def sample(self, size: int) -> Iterator[TextPair]:
        """Yield about `size` kept pairs, or all; whether a pair is one depends on its hash."""
        share = min(1.0, size / max(1, len(self.verdicts)))
        bound = np.uint64(min(2**64 - 1, int(2**64 * share)))
        for shard, verdicts in self.with_verdicts():
            sampled = (verdicts == KEPT) & ((shard.column("pair_hash") < bound) | (share == 1))
            yield from shard.pairs(np.flatnonzero(sampled))

    def drop_duplicates(self) -> None:
        """Drop each kept pair that equals an earlier one."""
        num_parts = 1 + len(self.verdicts) // SORTED_AT_ONCE
        for part in range(num_parts):
            indices, hashes, start = [], [], 0
            for shard, verdicts in self.with_verdicts():
                values = shard.column("pair_hash")
                chosen = (verdicts == KEPT) & (values % num_parts == part)
                indices.append(start + np.flatnonzero(chosen))
                hashes.append(values[chosen])
                start += len(verdicts)
            index, value = np.concatenate(indices), np.concatenate(hashes)
            _, first = np.unique(value, return_index=True)
            self.verdicts[np.delete(index, first)] = CODES["duplicates"]

    def drop_sources(self, sources: Hashes, rule: str) -> None:
        """Drop the kept pairs with one of these source sentences."""
        if len(sources):
            for shard, verdicts in self.with_verdicts():
                found = np.isin(shard.column("source_hash"), sources)
                verdicts[(verdicts == KEPT) & found] = CODES[rule]

    def smallest_sources(self, count: int) -> Hashes:
        """Return the `count` smallest distinct hashes of kept sources, ascending."""
        smallest = np.zeros(0, dtype=np.uint64)
        if count:
            for shard, verdicts in self.with_verdicts():
                found = shard.column("source_hash")[verdicts == KEPT]
                smallest = np.unique(np.concatenate([smallest, found]))[:count]
        return smallest
