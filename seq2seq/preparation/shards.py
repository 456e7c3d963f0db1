"""The pairs of all corpora in files, with hashes and cleaning rules.

The corpora are read once. All later stages (selection, tokenizer, encoding) read these files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import feather

from seq2seq.config import CleaningConfig
from seq2seq.errors import UserError
from seq2seq.preparation.cleaning import KEPT, pair_hashes, text_rule
from seq2seq.preparation.corpora import Corpus, TextPair
from seq2seq.progress_bar import ProgressBar


@dataclass(frozen=True)
class Shard:
    """Consecutive pairs of a corpus, in a file."""

    file: Path
    corpus: int = 0
    """The number of the corpus."""
    tag: str | None = None
    """The tag of the corpus."""

    def column(self, name: str) -> NDArray[Any]:
        """Return the `rule` that drops each pair, its `pair_hash`, or its `source_hash`."""
        return self._read(name).column(0).to_numpy()

    def targets(self) -> set[str]:
        """Return the distinct targets."""
        return set(self._read("target").column(0).unique().to_pylist())

    def pairs(self, indices: NDArray[np.int64] | None = None) -> Iterator[TextPair]:
        """Yield all pairs, or those at some indices, with the tag before each source."""
        table = self._read("source", "target")
        if indices is not None:
            table = table.take(indices)
        sources, targets = (column.to_pylist() for column in table.columns)
        return zip((tagged(self.tag, source) for source in sources), targets, strict=True)

    def _read(self, *columns: str) -> pyarrow.Table:
        return feather.read_table(self.file, columns=columns)


def write_shard(
    file: Path,
    pairs: Sequence[TextPair],
    clean: CleaningConfig | None,
    languages: tuple[str, str],
) -> None:
    """Write pairs with their hashes and rules; without `clean` no rule drops them."""
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
    with file.open("wb") as sink:  # whose errors have their own text
        feather.write_feather(table, sink, compression="lz4")


def write_shards(
    folder: Path, corpora: Sequence[Corpus], clean: CleaningConfig, languages: tuple[str, str]
) -> None:
    """Write all pairs of the corpora to a folder; raises UserError for an empty corpus.

    Development and test sets are not filtered. They are read first, to find their errors early.
    """
    num_pairs = 0
    with ProgressBar(None) as progress_bar:
        for number, corpus in sorted(enumerate(corpora), key=lambda each: each[1].split == "train"):
            before, rules = num_pairs, clean if corpus.split == "train" else None
            for i, pairs in enumerate(corpus.batches()):
                file = folder / f"{number:05}-{i:07}.feather"
                write_shard(file, pairs, rules, languages)
                num_pairs += len(pairs)
                progress_bar.show(f"  reading: {num_pairs:,} pairs")
            if num_pairs == before:
                raise UserError(f"data.{corpus.split}: {corpus.name} is empty")


def tagged(tag: str | None, source: str) -> str:
    """Put a corpus's tag before a source sentence."""
    return f"{tag} {source}" if tag and source.strip() else source


def read_shards(folder: Path, corpora: Sequence[Corpus]) -> list[Shard]:
    """Return what `write_shards` wrote, in the order of the corpora."""
    return [
        Shard(file, number, corpus.tag)
        for number, corpus in enumerate(corpora)
        for file in sorted(folder.glob(f"{number:05}-*"))
    ]


def sha256_of_pairs(shards: Iterable[Shard]) -> str:
    """Return the checksum of pairs as lines of `source<TAB>target`, without tags."""
    digest = hashlib.sha256()
    for shard in shards:
        pairs = replace(shard, tag=None).pairs()
        digest.update("".join(f"{source}\t{target}\n" for source, target in pairs).encode())
    return digest.hexdigest()
