"""Chunks: files with consecutive pairs of a corpus, their hashes and the results of cleaning rules.

The corpora are read once. All later stages (selection, tokenizer, encoding) read the chunks.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import feather

from seq2seq.config import PairsConfig
from seq2seq.errors import UserError
from seq2seq.preparation.cleaning import CODES, KEPT, pair_hashes, text_rule
from seq2seq.preparation.corpora import Corpus, TextPair
from seq2seq.terminal import ProgressBar

Hashes = NDArray[np.uint64]
Indices = NDArray[np.int64]
"""Ascending indices of pairs: in a chunk, or in all training corpora."""
SORTED_PARTS = 16
"""Number of parts in which duplicates are found, to save memory."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Chunk:
    """File with consecutive pairs of a corpus."""

    file: Path
    corpus: Corpus

    def column(self, name: str) -> NDArray[Any]:
        """Return a column: `rule` (that drops a pair, or KEPT), `pair_hash` or `source_hash`."""
        return self._read(name).column(0).to_numpy()

    def targets(self) -> set[str]:
        """Return the distinct targets."""
        return set(self._read("target").column(0).unique().to_pylist())

    def pairs(self, indices: Indices | None = None) -> Iterator[TextPair]:
        """Yield all pairs, or the pairs at some indices, without the tag of the corpus."""
        table = self._read("source", "target")
        columns = table.columns if indices is None else table.take(indices).columns
        return zip(*(column.to_pylist() for column in columns), strict=True)

    def _read(self, *columns: str) -> pyarrow.Table:
        return feather.read_table(self.file, columns=columns)


def write_chunk(file: Path, pairs: Sequence[TextPair], data: PairsConfig, *, clean: bool) -> None:
    """Write pairs with their hashes. clean: whether to apply the rules on one pair."""
    hashes = np.array([pair_hashes(*pair) for pair in pairs], dtype=np.uint64)
    table = pyarrow.table(
        {
            "source": [source for source, _ in pairs],
            "target": [target for _, target in pairs],
            "rule": np.array(
                [text_rule(data, *pair) if clean else KEPT for pair in pairs], dtype=np.uint8
            ),
            "pair_hash": hashes[:, 0],
            "source_hash": hashes[:, 1],
        }
    )
    with file.open("wb") as sink:  # Python's errors are clearer than pyarrow's
        feather.write_feather(table, sink, compression="lz4")


def write_chunks(folder: Path, corpora: Sequence[Corpus], data: PairsConfig) -> None:
    """Write all pairs of the corpora to a folder. Raises UserError for an empty corpus.

    Warns if many pairs have equal sides. Development and test sets are not filtered. They are read
    first, to report errors early.
    """
    total = 0
    with ProgressBar(None) as progress_bar:
        for number, corpus in sorted(enumerate(corpora), key=lambda item: item[1].split == "train"):
            count = equal = 0
            for i, pairs in enumerate(corpus.batches()):
                file = folder / f"{number:05}-{i:07}.feather"
                write_chunk(file, pairs, data, clean=corpus.split == "train")
                count += len(pairs)
                equal += sum(source == target != "" for source, target in pairs)
                progress_bar.show(f"  reading: {total + count:,} pairs")
            total += count
            where = f"data.{corpus.split}: {corpus.name}"
            if not count:
                raise UserError(f"{where} is empty")
            if equal > count / 5 and corpus.split != "exclude":
                problem = f"both sides are equal in {equal:,} of {count:,} pairs"
                logger.warning("%s: %s; check the names of files or columns", where, problem)


def read_chunks(folder: Path, corpora: Sequence[Corpus]) -> list[Chunk]:
    """Return the chunks that `write_chunks` wrote, in the order of the corpora."""
    return [
        Chunk(file, corpus)
        for number, corpus in enumerate(corpora)
        for file in sorted(folder.glob(f"{number:05}-*"))
    ]


def sha256_of_pairs(chunks: Iterable[Chunk]) -> str:
    """Return the SHA-256 checksum of pairs as `source<TAB>target` lines, without tags."""
    digest = hashlib.sha256()
    for chunk in chunks:
        lines = (f"{source}\t{target}\n" for source, target in chunk.pairs())
        digest.update("".join(lines).encode())
    return digest.hexdigest()


class Selection:
    """The training pairs of all chunks, with the rule that drops each of them, if any."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        """Start from the rules that `write_chunks` applied."""
        self.chunks = chunks
        codes: list[NDArray[np.uint8]] = [chunk.column("rule") for chunk in chunks]
        self.codes = np.concatenate(codes)
        """For each pair, KEPT or the code of a rule (`cleaning.CODES`)."""
        self._starts = np.cumsum([0, *map(len, codes)])[:-1]
        """Index of the first pair of each chunk."""

    @property
    def kept(self) -> Indices:
        """Indices of the pairs that no rule has dropped so far."""
        return np.flatnonzero(self.codes == KEPT)

    def dropped(self) -> dict[str, int]:
        """Return the number of dropped (or held-out) pairs by rule."""
        counts = np.bincount(self.codes, minlength=len(CODES) + 1).tolist()
        return {rule: counts[code] for rule, code in CODES.items() if counts[code]}

    def by_chunk(self) -> Iterator[tuple[Chunk, NDArray[np.uint8]]]:
        """Yield each chunk with a writable view of its codes."""
        return zip(self.chunks, np.split(self.codes, self._starts[1:]), strict=True)

    def pairs(self, indices: Indices) -> Iterator[TextPair]:
        """Read the pairs at some indices."""
        parts = np.split(indices, np.searchsorted(indices, self._starts[1:]))
        for chunk, start, part in zip(self.chunks, self._starts, parts, strict=True):
            if len(part):
                yield from chunk.pairs(part - start)

    def sample(self, size: int) -> Iterator[TextPair]:
        """Sample about `size` of all pairs by their hashes; yield the kept pairs in the sample."""
        share, kept = size / max(1, len(self.codes)), self.kept
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
            self.codes[kept[indices[1:][repeated]]] = CODES["duplicates"]

    def drop_overlap(self, chunks: Sequence[Chunk]) -> None:
        """Drop kept pairs whose source is in `chunks` of other corpora."""
        known = np.sort(np.concatenate([chunk.column("source_hash") for chunk in chunks]))
        self.codes[self._kept_with_source(known)] = CODES["overlap"]

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
        corpora = [chunk.corpus for chunk in self.chunks]
        end = [*self._starts, len(self.codes)][corpora.count(corpora[0])]
        hashes = column[:end][self.codes[:end] == KEPT]
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
        self.codes[held_out] = CODES["held_out"]
        _, first = np.unique(column[held_out], return_index=True)
        dev, test = np.split(held_out[first], [data.dev_size])
        return {split: np.sort(part) for split, part in [("dev", dev), ("test", test)] if len(part)}

    def _kept_with_source(self, known: Hashes) -> Indices:
        """Return the indices of kept pairs whose source hash is in `known` (sorted)."""
        found = []
        for start, (chunk, codes) in zip(self._starts, self.by_chunk(), strict=True):
            hashes = chunk.column("source_hash")
            # Without the last value, the position is always a valid index.
            is_known = known[np.searchsorted(known[:-1], hashes)] == hashes
            found.append(start + np.flatnonzero(is_known & (codes == KEPT)))
        return np.concatenate(found)

    def _column(self, name: str) -> Hashes:
        return np.concatenate([chunk.column(name) for chunk in self.chunks])
