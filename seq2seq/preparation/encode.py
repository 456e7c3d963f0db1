"""Encode pairs and write their token ids to the store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from seq2seq.data.store import StoreWriter
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.files import atomic_file, write_text
from seq2seq.preparation.cleaning import KEPT
from seq2seq.preparation.ingest import IngestedBlock
from seq2seq.preparation.selection import Verdicts

BATCH_SIZE = 2_000
"""Number of sentences encoded at once."""
NUM_EXAMPLES = 5
"""Number of dropped pairs of each rule that are kept for people to look at."""


@dataclass(frozen=True)
class EncodeTask:
    """A block of training pairs, their verdicts, and the file for those that are kept."""

    block: IngestedBlock
    verdicts: Verdicts
    max_len: int | None
    tokenizer: Path
    """Folder of the tokenizer."""
    file: Path
    counts: Path
    """File for the result of `encode_block`, in the folder of unfinished work."""


@dataclass
class Counts:
    """Number of encoded pairs and tokens, and of pairs with more than `max_len` tokens."""

    pairs: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    too_long: int = 0
    longest: list[list[str]] = field(default_factory=list)
    """Some of those pairs, for people to look at."""

    def add(self, other: Counts) -> None:
        """Add the counts of another block."""
        self.pairs += other.pairs
        self.source_tokens += other.source_tokens
        self.target_tokens += other.target_tokens
        self.too_long += other.too_long
        self.longest = (self.longest + other.longest)[:NUM_EXAMPLES]


def encode_block(task: EncodeTask) -> Counts:
    """Write the kept pairs of a block atomically, unless an interrupted preparation has."""
    if task.file.exists() and task.counts.exists():
        return Counts(**json.loads(task.counts.read_text(encoding="utf-8")))
    tokenizer, done = _load_tokenizer(task.tokenizer), Counts()
    sources, targets = task.block.pairs(task.verdicts == KEPT)
    draft = task.counts.with_suffix(".arrow")
    with atomic_file(task.file, draft) as sink, StoreWriter(sink) as writer:
        for start in range(0, len(sources), BATCH_SIZE):
            batch = slice(start, start + BATCH_SIZE)
            texts = [tagged(task.block.tag, source) for source in sources[batch]]
            rows = list(zip(tokenizer.source.encode(texts), tokenizer.target.encode(targets[batch]),
                            strict=True))  # fmt: skip
            if task.max_len is not None:
                fitting = [row for row in rows if max(map(len, row)) <= task.max_len]
                done.too_long += len(rows) - len(fitting)
                pairs = zip(rows, texts, targets[batch], strict=True)
                done.longest += [
                    [source, target]
                    for row, source, target in pairs
                    if max(map(len, row)) > task.max_len
                ][: NUM_EXAMPLES - len(done.longest)]
                rows = fitting
            if rows:
                source_ids, target_ids = zip(*rows, strict=True)
                writer.write(source_ids, target_ids)
                done.pairs += len(rows)
                done.source_tokens += sum(map(len, source_ids)) + len(rows)
                done.target_tokens += sum(map(len, target_ids)) + len(rows)
    write_text(task.counts, json.dumps(vars(done)))
    return done


def encode_with_text(
    path: Path, sources: Sequence[str], targets: Sequence[str], tokenizer: Tokenizer
) -> None:
    """Write a development or test set, ids and text."""
    with atomic_file(path) as sink, StoreWriter(sink, with_text=True) as writer:
        for start in range(0, len(sources), BATCH_SIZE):
            batch = sources[start : start + BATCH_SIZE], targets[start : start + BATCH_SIZE]
            rows = tokenizer.source.encode(batch[0]), tokenizer.target.encode(batch[1])
            writer.write(*rows, *batch)


def tagged(tag: str | None, source: str) -> str:
    """Put a corpus's tag before a source sentence."""
    return f"{tag} {source}" if tag and source.strip() else source


@lru_cache(maxsize=1)
def _load_tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)
