"""Shards: files with the pairs of all corpora, their hashes and the results of cleaning rules.

The corpora are read once. All later stages (selection, tokenizer, encoding) read the shards.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import feather

from seq2seq.config import CleaningConfig, PairsConfig
from seq2seq.errors import UserError
from seq2seq.preparation.cleaning import CODES, KEPT, pair_hashes, text_rule
from seq2seq.preparation.corpora import Corpus, TextPair
from seq2seq.terminal import ProgressBar

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shard:
    """File with consecutive pairs of a corpus."""

    file: Path
    corpus: int = 0
    """Index of the corpus."""
    tag: str | None = None
    """Tag of the corpus."""

    def column(self, name: str) -> NDArray[Any]:
        """Return a column: `rule` (that drops a pair, or KEPT), `pair_hash` or `source_hash`."""
        return self._read(name).column(0).to_numpy()

    def targets(self) -> set[str]:
        """Return the distinct targets."""
        return set(self._read("target").column(0).unique().to_pylist())

    def pairs(self, indices: NDArray[np.int64] | None = None) -> Iterator[TextPair]:
        """Yield all pairs, or the pairs at some indices, with the tag before each source."""
        table = self._read("source", "target")
        if indices is not None:
            table = table.take(indices)
        sources, targets = (column.to_pylist() for column in table.columns)
        return zip((tagged(self.tag, source) for source in sources), targets, strict=True)

    def _read(self, *columns: str) -> pyarrow.Table:
        return feather.read_table(self.file, columns=columns)


def write_shard(
    file: Path, pairs: Sequence[TextPair], clean: CleaningConfig | None, languages: tuple[str, str]
) -> None:
    """Write pairs with their hashes and rules. If `clean` is None, no rule is applied."""
    rules = [text_rule(clean, languages, *pair) if clean else KEPT for pair in pairs]
    hashes = np.array([pair_hashes(*pair) for pair in pairs], dtype=np.uint64)
    table = pyarrow.table(
        {
            "source": [source for source, _ in pairs],
            "target": [target for _, target in pairs],
            "rule": np.array(rules, dtype=np.uint8),
            "pair_hash": hashes[:, 0],
            "source_hash": hashes[:, 1],
        }
    )
    with file.open("wb") as sink:  # Python's errors are clearer than pyarrow's
        feather.write_feather(table, sink, compression="lz4")


def write_shards(folder: Path, corpora: Sequence[Corpus], data: PairsConfig) -> None:
    """Write all pairs of the corpora to a folder. Raises UserError for an empty corpus.

    Warns if many pairs have equal sides. Development and test sets are not filtered. They are read
    first, to report errors early.
    """
    num_pairs = 0
    with ProgressBar(None) as progress_bar:
        for number, corpus in sorted(enumerate(corpora), key=lambda item: item[1].split == "train"):
            before, rules = num_pairs, data.clean if corpus.split == "train" else None
            equal = 0
            for i, pairs in enumerate(corpus.batches()):
                file = folder / f"{number:05}-{i:07}.feather"
                write_shard(file, pairs, rules, (data.source, data.target))
                equal += sum(source == target != "" for source, target in pairs)
                num_pairs += len(pairs)
                progress_bar.show(f"  reading: {num_pairs:,} pairs")
            count, where = num_pairs - before, f"data.{corpus.split}: {corpus.name}"
            if not count:
                raise UserError(f"{where} is empty")
            if equal > count / 5 and corpus.split != "exclude":
                problem = f"both sides are equal in {equal:,} of {count:,} pairs"
                logger.warning("%s: %s; check the names of files or columns", where, problem)


def tagged(tag: str | None, source: str) -> str:
    """Put a corpus's tag before a source sentence."""
    return f"{tag} {source}" if tag and source.strip() else source


def read_shards(folder: Path, corpora: Sequence[Corpus]) -> list[Shard]:
    """Return the shards that `write_shards` wrote, in the order of the corpora."""
    return [
        Shard(file, number, corpus.tag)
        for number, corpus in enumerate(corpora)
        for file in sorted(folder.glob(f"{number:05}-*"))
    ]


def sha256_of_pairs(shards: Iterable[Shard]) -> str:
    """Return the SHA-256 checksum of pairs as `source<TAB>target` lines, without tags."""
    digest = hashlib.sha256()
    for shard in shards:
        pairs = replace(shard, tag=None).pairs()
        digest.update("".join(f"{source}\t{target}\n" for source, target in pairs).encode())
    return digest.hexdigest()


Hashes = NDArray[np.uint64]
Indices = NDArray[np.int64]
"""Indices into all training pairs, ascending."""
SORTED_PARTS = 16
"""Number of parts in which duplicates are found, to save memory."""


class Selection:
    """Training pairs in shards, with a decision (verdict) for every pair."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        """Start from the codes that `text_rule` stored in the shards."""
        self.shards = shards
        rules: list[NDArray[np.uint8]] = [shard.column("rule") for shard in shards]
        self.verdicts = np.concatenate(rules)
        """Verdict on every pair: KEPT or the code of a rule (`cleaning.CODES`)."""
        self.starts = list(accumulate(map(len, rules), initial=0))[:-1]
        """Index of the first pair of each shard."""

    @property
    def kept(self) -> Indices:
        """Indices of the pairs that no rule has dropped so far."""
        return np.flatnonzero(self.verdicts == KEPT)

    def dropped(self) -> dict[str, int]:
        """Return the number of dropped (or held-out) pairs by rule."""
        counts = np.bincount(self.verdicts, minlength=len(CODES) + 1).tolist()
        return {rule: counts[code] for rule, code in CODES.items() if counts[code]}

    def by_shard(self) -> Iterator[tuple[Shard, NDArray[np.uint8]]]:
        """Yield each shard with a writable view of its verdicts."""
        return zip(self.shards, np.split(self.verdicts, self.starts[1:]), strict=True)

    def pairs(self, indices: Indices) -> Iterator[TextPair]:
        """Read the pairs at some indices."""
        parts = np.split(indices, np.searchsorted(indices, self.starts[1:]))
        for shard, start, part in zip(self.shards, self.starts, parts, strict=True):
            if len(part):
                yield from shard.pairs(part - start)

    def sample(self, size: int) -> Iterator[TextPair]:
        """Sample about `size` of all pairs by their hashes; yield the kept pairs in the sample."""
        share, kept = size / max(1, len(self.verdicts)), self.kept
        if share < 1:
            kept = kept[self._column("pair_hash")[kept] < np.uint64(2**64 * share)]
        return self.pairs(kept)

    def drop_duplicates(self) -> None:
        """Drop kept pairs that equal an earlier pair."""
        kept = self.kept
        hashes = self._column("pair_hash")[kept]
        for part in range(SORTED_PARTS):
            indices = np.flatnonzero(hashes % SORTED_PARTS == part)
            indices = indices[np.argsort(hashes[indices], kind="stable")]
            repeated = hashes[indices[1:]] == hashes[indices[:-1]]
            self.verdicts[kept[indices[1:][repeated]]] = CODES["duplicates"]

    def drop_overlap(self, evaluation: Sequence[Shard]) -> None:
        """Drop kept pairs whose source is in the evaluation data."""
        known = np.sort(np.concatenate([shard.column("source_hash") for shard in evaluation]))
        self.verdicts[self._kept_with_source(known)] = CODES["overlap"]

    def hold_out(self, data: PairsConfig) -> dict[str, Indices]:
        """Hold out development and test sets of the recipe's sizes; return their indices.

        Selects the sources with the smallest hashes from the first corpus, with the first target of
        each source. Drops all pairs with these sources from all corpora. Raises UserError if there
        are too few sources.
        """
        count = data.dev_size + data.test_size
        if not count:
            return {}
        column = self._column("source_hash")
        kept, corpora = self.kept, [shard.corpus for shard in self.shards]
        end = [*self.starts, len(self.verdicts)][corpora.count(corpora[0])]
        hashes = column[kept[: np.searchsorted(kept, end)]]
        hashes.sort()
        distinct = groupby(hashes)  # np.unique takes several seconds
        chosen = np.array([value for value, _ in islice(distinct, count)], dtype=np.uint64)
        if len(chosen) < count:
            raise UserError(
                f"data.dev_size + data.test_size = {count}, but after cleaning the first "
                f"training corpus has only {len(chosen)} different sources: hold out fewer, such "
                f"as {max(1, len(chosen) // 10)}"
            )
        held_out = self._kept_with_source(chosen)
        self.verdicts[held_out] = CODES["held_out"]
        _, first = np.unique(column[held_out], return_index=True)
        dev, test = np.split(held_out[first], [data.dev_size])
        return {split: np.sort(part) for split, part in [("dev", dev), ("test", test)] if len(part)}

    def _kept_with_source(self, known: Hashes) -> Indices:
        """Return the indices of kept pairs whose source hash is in `known` (sorted)."""
        found = []
        for start, (shard, verdicts) in zip(self.starts, self.by_shard(), strict=True):
            hashes = shard.column("source_hash")
            # Without the last value, the position is always a valid index.
            is_known = known[np.searchsorted(known[:-1], hashes)] == hashes
            found.append(start + np.flatnonzero(is_known & (verdicts == KEPT)))
        return np.concatenate(found)

    def _column(self, name: str) -> Hashes:
        return np.concatenate([shard.column(name) for shard in self.shards])
