"""Pairs of text to stores of ids."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path

import xxhash

from seq2seq.data.cleaning import CODES, KEPT, RULES, pair_hashes
from seq2seq.data.corpus import Block, Pair
from seq2seq.data.store import StoreWriter
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.verdicts import Verdicts
from seq2seq.folders import sync

ENCODE_BATCH = 2_000
"""Sentences that the tokenizer is handed at once."""


@dataclass(frozen=True)
class EncodeTask:
    """A block of training pairs, what becomes of each, and the file for those that are kept."""

    block: Block
    verdicts: Verdicts
    tag: str | None
    max_len: int | None
    tokenizer: Path
    """The folder that holds it."""
    checksum: str
    """The tokenizer's."""
    file: Path
    work: Path
    """The folder for what is only needed until all is prepared."""


@dataclass
class Encoded:
    """What became of a block, or of several."""

    pairs: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    held_out: list[tuple[int, str, str]] = field(default_factory=list)
    """Hash of the source, and the pair; of one block."""

    def add(self, other: Encoded) -> None:
        """Add another block's counts."""
        self.pairs += other.pairs
        self.source_tokens += other.source_tokens
        self.target_tokens += other.target_tokens
        self.dropped.update(other.dropped)


def encode_block(task: EncodeTask) -> Encoded:
    """Write the pairs of a block that are kept, whole or not at all.

    What an earlier attempt wrote of the same pairs, with the same tokenizer, stays.
    """
    facts, draft = (task.work / f"{task.file.stem}{end}" for end in (".json", ".arrow"))
    verdicts = xxhash.xxh3_64_hexdigest(task.verdicts.tobytes())
    made_of = [task.block.digest, verdicts, task.checksum]
    if task.file.exists() and facts.exists():
        found = json.loads(facts.read_text(encoding="utf-8"))
        if found.pop("made_of") == made_of:
            return Encoded(**found)
    # Before its facts are: a kill in between must not pair old with new.
    task.file.unlink(missing_ok=True)
    done, kept = _sorted_out(task)
    tokenizer = _tokenizer(task.tokenizer, task.checksum)
    with StoreWriter(draft) as writer:
        for start in range(0, len(kept), ENCODE_BATCH):
            sources, targets = zip(*kept[start : start + ENCODE_BATCH], strict=True)
            rows = list(zip(tokenizer.source.encode(sources), tokenizer.target.encode(targets),
                            strict=True))  # fmt: skip
            if task.max_len is not None:
                fitting = [row for row in rows if max(map(len, row)) <= task.max_len]
                done.dropped["max_len"] += len(rows) - len(fitting)
                rows = fitting
            if rows:
                source_rows, target_rows = zip(*rows, strict=True)
                writer.write(source_rows, target_rows)
                done.pairs += len(rows)
                done.source_tokens += sum(map(len, source_rows)) + len(rows)
                done.target_tokens += sum(map(len, target_rows)) + len(rows)
    done.dropped = +done.dropped  # without rules that dropped none
    facts.write_text(json.dumps(vars(done) | {"made_of": made_of}), encoding="utf-8")
    sync(facts, draft)
    draft.replace(task.file)
    return done


def _sorted_out(task: EncodeTask) -> tuple[Encoded, list[Pair]]:
    """Return what the verdicts drop and hold out of a block, and the pairs that are kept."""
    found, kept, rules = Encoded(), [], list(RULES)
    for code, (source, target) in zip(task.verdicts.tolist(), task.block.pairs(), strict=True):
        if code == KEPT:
            kept.append((tagged(task.tag, source), target))
            continue
        found.dropped[rules[code - 1]] += 1
        if code == CODES["held_out"]:
            value = pair_hashes(source, target)[1]
            found.held_out.append((value, tagged(task.tag, source), target))
    return found, kept


def encode_held_out(path: Path, pairs: Iterable[Pair], tokenizer: Tokenizer) -> int:
    """Write a development or test set with its text; return the number of pairs."""
    stream = iter(pairs)
    count = 0
    with StoreWriter(path, with_text=True) as writer:
        while chunk := list(islice(stream, ENCODE_BATCH)):
            sources, targets = zip(*chunk, strict=True)
            rows = tokenizer.source.encode(sources), tokenizer.target.encode(targets)
            writer.write(*rows, sources, targets)
            count += len(chunk)
    return count


def tagged(tag: str | None, source: str) -> str:
    """Put a corpus's tag before a source."""
    return f"{tag} {source}" if tag and source.strip() else source


@lru_cache(maxsize=1)
def _tokenizer(folder: Path, checksum: str) -> Tokenizer:
    """Load it once for many blocks; another one in the same folder has another checksum."""
    return Tokenizer.load(folder)
