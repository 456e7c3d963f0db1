"""Read every corpus once and write its pairs, with hashes and cleaning rules, to Arrow files.

All later steps (duplicates, held-out pairs, tokenizer, encoding) read these files instead of the
corpora. Each block is one file; an interrupted preparation resumes after the last one.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

from seq2seq.config import CleaningConfig
from seq2seq.errors import UserError
from seq2seq.files import atomic_file, write_text
from seq2seq.preparation.cleaning import KEPT, pair_hashes, text_rule
from seq2seq.preparation.corpora import BLOCK_PAIRS, Block
from seq2seq.preparation.sources import Source
from seq2seq.preparation.workers import in_order
from seq2seq.progress_bar import ProgressBar

Hashes = NDArray[np.uint64]

SCHEMA = pyarrow.schema(
    [
        ("source", pyarrow.string()),
        ("target", pyarrow.string()),
        ("rule", pyarrow.uint8()),
        ("pair_hash", pyarrow.uint64()),
        ("source_hash", pyarrow.uint64()),
    ]
)
FINISHED = "ingested.json"
"""The number of blocks of each corpus, written after all blocks."""


@dataclass(frozen=True)
class IngestedBlock:
    """Consecutive pairs of a corpus, in a file."""

    file: Path
    corpus: int
    """Number of the corpus."""
    split: str
    tag: str | None

    def __len__(self) -> int:
        return len(self._column("rule"))

    def rules(self) -> NDArray[np.uint8]:
        """Return the code of the rule that drops each pair, or KEPT."""
        return self._column("rule").to_numpy()

    def pair_hashes(self) -> Hashes:
        """Return a hash of each pair."""
        return self._column("pair_hash").to_numpy()

    def source_hashes(self) -> Hashes:
        """Return a hash of each source sentence."""
        return self._column("source_hash").to_numpy()

    def labels(self) -> set[str]:
        """Return the distinct targets."""
        return set(pyarrow.compute.unique(self._column("target")).to_pylist())

    def pairs(self, chosen: NDArray[np.bool_] | None = None) -> tuple[list[str], list[str]]:
        """Return sources and targets, of all pairs or of those where `chosen` is True."""
        table = self._read("source", "target")
        if chosen is not None:
            table = table.filter(pyarrow.array(chosen))
        return table.column(0).to_pylist(), table.column(1).to_pylist()

    def _column(self, name: str) -> Any:
        return self._read(name).column(0)

    def _read(self, *names: str) -> Any:
        fields = [SCHEMA.get_field_index(name) for name in names]
        options = pyarrow.ipc.IpcReadOptions(included_fields=fields)
        with pyarrow.memory_map(str(self.file)) as file:
            return pyarrow.ipc.open_file(file, options=options).read_all()


@dataclass(frozen=True)
class IngestTask:
    """A block of a corpus and the file to write it to."""

    block: Block
    clean: CleaningConfig | None
    """None for development and test sets, which are not filtered."""
    languages: tuple[str, str]
    file: Path


def ingest_block(task: IngestTask) -> None:
    """Write a block atomically; raises UserError for an invalid line."""
    sources, targets, rules, hashes = [], [], [], []
    for source, target in task.block.pairs():
        sources.append(source)
        targets.append(target)
        hashes.append(pair_hashes(source, target))
        rules.append(text_rule(task.clean, task.languages, source, target) if task.clean else KEPT)
    of_pairs, of_sources = np.array(hashes, dtype=np.uint64).T
    columns = [sources, targets, np.array(rules, dtype=np.uint8), of_pairs, of_sources]
    arrays = [
        pyarrow.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)
    ]
    options = pyarrow.ipc.IpcWriteOptions(compression="lz4")
    with (
        atomic_file(task.file) as sink,
        pyarrow.ipc.new_file(sink, SCHEMA, options=options) as writer,
    ):
        writer.write_batch(pyarrow.record_batch(arrays, schema=SCHEMA))


def ingest(
    corpora: Sequence[Source],
    clean: CleaningConfig | None,
    languages: tuple[str, str],
    folder: Path,
    processes: int,
) -> list[IngestedBlock]:
    """Write all pairs of the corpora to files in `folder`; return them as blocks, in order.

    Blocks that an interrupted call has finished are kept. Raises UserError for an empty corpus.
    """
    finished = folder / FINISHED
    if not finished.exists():
        write_text(finished, json.dumps(_ingest(corpora, clean, languages, folder, processes)))
    counts = json.loads(finished.read_text(encoding="utf-8"))
    return [
        IngestedBlock(_file(folder, number, i), number, source.split, source.tag)
        for number, source in enumerate(corpora)
        for i in range(counts[number])
    ]


def _ingest(
    corpora: Sequence[Source],
    clean: CleaningConfig | None,
    languages: tuple[str, str],
    folder: Path,
    processes: int,
) -> list[int]:
    """Write the missing blocks; return the number of blocks of each corpus."""
    counts = [0] * len(corpora)
    sizes: deque[tuple[int, int]] = deque()

    def tasks(*splits: str) -> Iterator[IngestTask]:
        for number, source in enumerate(corpora):
            if source.split not in splits:
                continue
            rules = clean if source.split == "train" else None
            skip = 0
            while (file := _file(folder, number, counts[number])).exists():
                skip += len(IngestedBlock(file, number, source.split, source.tag))
                counts[number] += 1
            for block in source.corpus.blocks(BLOCK_PAIRS, skip):
                sizes.append((len(block), block.work))
                yield IngestTask(block, rules, languages, _file(folder, number, counts[number]))
                counts[number] += 1
            if not counts[number]:
                raise UserError(f"data.{source.split}: {source.corpus} is empty")

    known = [source.corpus.num_bytes for source in corpora]
    total = None if None in known else sum(size for size in known if size)
    evaluation = map(ingest_block, tasks("dev", "test"))  # too small for several processes
    pairs = 0
    with (
        ProgressBar(total) as progress_bar,
        closing(in_order(ingest_block, tasks("train"), processes)) as training,
    ):
        for _ in chain(evaluation, training):
            count, work = sizes.popleft()
            pairs += count
            progress_bar.advance(work)
            progress_bar.show(f"  reading: {pairs:,} pairs{progress_bar.time_left()}")
    return counts


def sha256_of_pairs(blocks: Iterable[IngestedBlock]) -> str:
    """Return the checksum of pairs as lines of `source<TAB>target`."""
    digest = hashlib.sha256()
    for block in blocks:
        lines = (f"{source}\t{target}\n" for source, target in zip(*block.pairs(), strict=True))
        digest.update("".join(lines).encode())
    return digest.hexdigest()


def _file(folder: Path, corpus: int, block: int) -> Path:
    return folder / f"corpus-{corpus:03}-{block:05}.arrow"
