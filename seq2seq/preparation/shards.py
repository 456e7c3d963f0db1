"""Shards: files with the pairs of all corpora, their hashes and the results of cleaning rules.

The corpora are read once. All later stages (selection, tokenizer, encoding) read the shards.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import feather

from seq2seq.config import CleaningConfig, PairsConfig
from seq2seq.errors import UserError
from seq2seq.preparation.cleaning import KEPT, pair_hashes, text_rule
from seq2seq.preparation.corpora import Corpus, TextPair
from seq2seq.progress_bar import ProgressBar

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
