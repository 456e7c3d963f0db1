"""Chunks: files with consecutive pairs of a corpus, their hashes and the results of cleaning rules.

The corpora are read once. All later stages (selection, tokenizer, encoding) read the chunks.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import feather

from seq2seq.config import CleaningConfig, Direction, PairsConfig
from seq2seq.errors import UserError
from seq2seq.preparation.cleaning import CODES, KEPT, text_hash, text_rule
from seq2seq.preparation.corpora import Corpus, TextPair, read_scores
from seq2seq.terminal import ProgressBar

Hashes = NDArray[np.uint64]
Indices = NDArray[np.int64]
"""Ascending indices of pairs: in a chunk, or in all training corpora."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Chunk:
    """File with consecutive pairs of a corpus."""

    file: Path
    corpus: Corpus

    def column(self, name: str) -> NDArray[Any]:
        """Return a column: `rule` (that drops a pair, or KEPT), `source_hash` or `target_hash`."""
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


def write_chunk(file: Path, pairs: Sequence[TextPair], corpus: Corpus, data: PairsConfig) -> None:
    """Write pairs with their hashes. The rules on one pair are applied to training pairs."""
    rule = partial(text_rule, data.clean, corpus.direction)
    clean = corpus.split == "train"
    sources, targets = zip(*pairs, strict=True)
    table = pyarrow.table(
        {
            "source": sources,
            "target": targets,
            "rule": np.array([rule(*pair) if clean else KEPT for pair in pairs], dtype=np.uint8),
            "source_hash": np.array(list(map(text_hash, sources)), dtype=np.uint64),
            "target_hash": np.array(list(map(text_hash, targets)), dtype=np.uint64),
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
                write_chunk(file, pairs, corpus, data)
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
        self._ranges: dict[Corpus, tuple[int, int]] = {}
        """Index of the first pair of each corpus, and the index after its last pair."""
        for chunk, start, size in zip(chunks, self._starts.tolist(), map(len, codes), strict=True):
            first, _ = self._ranges.get(chunk.corpus, (start, start))
            self._ranges[chunk.corpus] = first, start + size

    @property
    def kept(self) -> Indices:
        """Indices of the pairs that no rule has dropped so far."""
        return np.flatnonzero(self.codes == KEPT)

    def dropped(self) -> dict[str, int]:
        """Return the number of dropped (or held-out) pairs by rule."""
        counts = np.bincount(self.codes, minlength=len(CODES) + 1).tolist()
        return {rule: counts[code] for rule, code in CODES.items() if counts[code]}

    def kept_of(self, corpus: Corpus) -> Indices:
        """Indices of the pairs of a corpus that no rule has dropped so far."""
        start, end = self._ranges[corpus]
        return start + np.flatnonzero(self.codes[start:end] == KEPT)

    def by_chunk(self) -> Iterator[tuple[Chunk, NDArray[np.uint8]]]:
        """Yield each chunk with a writable view of its codes."""
        return zip(self.chunks, np.split(self.codes, self._starts[1:]), strict=True)

    def pairs(self, indices: Indices) -> Iterator[TextPair]:
        """Read the pairs at some indices."""
        parts = np.split(indices, np.searchsorted(indices, self._starts[1:]))
        for chunk, start, part in zip(self.chunks, self._starts, parts, strict=True):
            if len(part):
                yield from chunk.pairs(part - start)

    def sample(self, size: int, data: PairsConfig) -> Iterator[TextPair]:
        """Yield about `size` kept pairs, chosen by their hashes.

        With `data.temperature`, each corpus has its share of an epoch, and small ones are repeated.
        """
        kept = [self.kept_of(corpus) for corpus in self._ranges]
        counts = [end - start for start, end in self._ranges.values()]
        weights = data.weights([len(indices) for indices in kept])
        weights = [x / min(1, max(weights)) if data.temperature > 1 else 1.0 for x in weights]
        total = sum(weight * count for weight, count in zip(weights, counts, strict=True))
        hashes = self._pair_hashes()
        for indices, weight in zip(kept, weights, strict=True):
            whole, fraction = divmod(min(size / max(1, total), 1) * weight, 1)
            for _ in range(int(whole)):
                yield from self.pairs(indices)
            yield from self.pairs(indices[hashes[indices] < np.uint64(2**64 * fraction)])

    def texts(self, language: str) -> Iterator[str]:
        """Yield the kept sentences in a language."""
        for corpus in self._ranges:
            for side, name in enumerate(corpus.direction):
                if name == language:
                    yield from (pair[side] for pair in self.pairs(self.kept_of(corpus)))

    def drop_duplicates(self) -> None:
        """Drop kept pairs that equal an earlier pair of the same direction."""
        kept, hashes = self.kept, self._pair_hashes()
        first, *_ = (corpus.direction for corpus in self._ranges)
        for corpus, (start, end) in self._ranges.items():
            if corpus.direction != first:
                hashes[start:end] ^= np.uint64(text_hash(str(corpus.direction)))
        order = np.argsort(hashes[kept], kind="stable")
        hashes = hashes[kept[order]]
        self.codes[kept[order[1:][hashes[1:] == hashes[:-1]]]] = CODES["duplicates"]

    def drop_overlap(self, chunks: Sequence[Chunk]) -> None:
        """Drop kept pairs whose source is in `chunks` of other corpora.

        It may be a target there, if pairs are used in both directions.
        """
        known = [chunk.column("source_hash") for chunk in chunks]
        known += [x.column("target_hash") for x in chunks if self._is_source(x.corpus.direction)]
        self.codes[self._kept_with_source(np.concatenate(known))] = CODES["overlap"]

    def drop_low_scores(self, clean: CleaningConfig) -> None:
        """Drop kept pairs with low scores from the corpora that have scores."""
        for corpus, (start, end) in self._ranges.items():
            if not corpus.scores:
                continue
            scores = read_scores(corpus.scores)
            if len(scores) != end - start:
                raise UserError(
                    f"{corpus.scores} has {len(scores):,} lines, but {corpus.name} has "
                    f"{end - start:,} pairs: each pair needs a score"
                )
            kept = self.kept_of(corpus)
            kept = kept[np.argsort(-scores[kept - start], kind="stable")]
            best = kept[: round((clean.best_share or 1) * len(kept))]
            if clean.min_score is not None:
                best = best[scores[best - start] >= clean.min_score]
            self.codes[kept] = CODES["scores"]
            self.codes[best] = KEPT

    def hold_out(self, data: PairsConfig) -> dict[str, dict[Direction, Indices]]:
        """Hold out development and test sets of the recipe's sizes; return their indices.

        Selects the sources with the smallest hashes from the first corpus of each direction, or
        only of `data.source` to `data.target`, with the first target of each source. Drops all
        pairs with these sources from all corpora. Raises UserError if there are too few sources.
        """
        count = data.dev_size + data.test_size
        if not count:
            return {}
        column = self._column("source_hash")
        firsts: dict[Direction, Corpus] = {}
        for corpus in self._ranges:
            firsts.setdefault(corpus.direction, corpus)
        if (main := Direction(data.source, data.target)) in firsts:
            firsts = {main: firsts[main]}
        chosen, known = {}, []
        for direction, corpus in firsts.items():
            kept = self.kept_of(corpus)
            distinct = groupby(np.sort(column[kept]))  # np.unique takes several seconds
            sources = np.array([value for value, _ in islice(distinct, count)], dtype=np.uint64)
            if len(sources) < count:
                raise UserError(
                    f"data.dev_size + data.test_size = {count}, but after cleaning {corpus.name} "
                    f"has only {len(sources)} different sources: hold out fewer, such as "
                    f"{max(1, len(sources) // 10)}"
                )
            kept = kept[_is_known(column[kept], sources)]
            _, first = np.unique(column[kept], return_index=True)
            chosen[direction] = np.split(kept[first], [data.dev_size])
            known.append(sources)
            if self._is_source(direction):
                known.append(self._column("target_hash")[kept[first]])
        self.codes[self._kept_with_source(np.concatenate(known))] = CODES["held_out"]
        sizes = {"dev": data.dev_size, "test": data.test_size}
        return {
            split: {direction: np.sort(parts[i]) for direction, parts in chosen.items()}
            for i, (split, size) in enumerate(sizes.items())
            if size
        }

    def _is_source(self, direction: Direction) -> bool:
        """Return whether sources of other training pairs are in the target language."""
        sources = {corpus.direction.source for corpus in self._ranges}
        return direction.target in sources - {direction.source}

    def _kept_with_source(self, known: Hashes) -> Indices:
        """Return the indices of kept pairs whose source hash is in `known`."""
        is_known = _is_known(self._column("source_hash"), np.sort(known))
        return np.flatnonzero(is_known & (self.codes == KEPT))

    def _pair_hashes(self) -> Hashes:
        # Multiplied, because the pairs (a, b) and (b, a) differ.
        return np.uint64(3) * self._column("source_hash") + self._column("target_hash")

    def _column(self, name: str) -> Hashes:
        return np.concatenate([chunk.column(name) for chunk in self.chunks])


def _is_known(hashes: Hashes, known: Hashes) -> NDArray[np.bool_]:
    """Return for each hash whether it is in `known` (sorted)."""
    # Without the last value, the position is always a valid index.
    found: NDArray[np.bool_] = known[np.searchsorted(known[:-1], hashes)] == hashes
    return found
