"""Which pairs of a recipe's corpora are kept, dropped or held out: what a first reading learns."""

from __future__ import annotations

import hashlib
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from seq2seq.config import CleaningConfig, Config, CorpusConfig
from seq2seq.data.cleaning import pair_hashes, require_languages, text_rule
from seq2seq.data.corpus import BLOCK_PAIRS, Block, Corpus, Pair, open_corpus, open_labelled
from seq2seq.data.progress_bar import ProgressBar
from seq2seq.data.sentencepiece_file import read_model_type
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.verdicts import (
    NOTE,
    Hashes,
    Notes,
    Verdicts,
    drop_duplicates,
    drop_sources,
    require_kept,
    sampled,
    smallest_sources,
)
from seq2seq.data.vocabulary import Alphabet, Labels
from seq2seq.data.workers import in_order
from seq2seq.errors import UserError
from seq2seq.folders import sync

MAX_LABELS = 1000
"""More are taken for a mistake."""


@dataclass(frozen=True)
class Sources:
    """The corpora of a recipe, opened."""

    train: list[tuple[CorpusConfig, Corpus]]
    held_out: dict[str, tuple[CorpusConfig, Corpus]]
    """`dev` and `test`, as far as the recipe names them."""
    own_tokenizer: Tokenizer | None

    @classmethod
    def open(cls, config: Config) -> Sources:
        """Find every file; raises UserError where one is missing."""
        data = config.data
        named = {"dev": data.dev, "test": data.test}
        labelled = config.task == "classification"

        def opened(corpus: CorpusConfig, key: str) -> Corpus:
            if labelled:
                return open_labelled(corpus, key, data.source or "text", data.target or "label")
            return open_corpus(corpus, data.source, data.target, key)

        train = [(corpus, opened(corpus, "data.train")) for corpus in data.train]
        held_out = {
            split: (corpus, opened(corpus, f"data.{split}"))
            for split, corpus in named.items()
            if corpus
        }
        models = [Path(path) for path in config.tokenizer.models]
        own_tokenizer = Tokenizer.from_files(models) if models else None
        if own_tokenizer and isinstance(own_tokenizer.source, Alphabet):
            raise UserError(f"{models[0]} is the alphabet of a language model: name SentencePiece")
        if own_tokenizer and config.tokenizer.bpe_dropout:
            _require_merges(models)
        if data.clean.languages:
            require_languages(data.source, data.target)
        sources = cls(train, held_out, own_tokenizer)
        for tag in sources.tags():
            if own_tokenizer and not own_tokenizer.source.knows(tag):
                raise UserError(
                    f"data.train: tag={tag!r} is not a symbol of {models[0]}: train that "
                    "model with it as user_defined_symbols"
                )
        return sources

    def blocks(self) -> Iterator[tuple[int, Block]]:
        """Read the training corpora one after the other: corpus number and block."""
        for number, (_, corpus) in enumerate(self.train):
            empty = True
            for block in corpus.blocks(BLOCK_PAIRS):
                yield number, block
                empty = False
            if empty:
                raise UserError(f"data.train: {corpus} is empty")

    def corpora(self) -> list[tuple[CorpusConfig, Corpus]]:
        return [*self.train, *self.held_out.values()]

    def files(self) -> list[Path]:
        return [path for _, corpus in self.corpora() for path in corpus.files]

    def num_bytes(self) -> int | None:
        """Return how much there is to read for training, if all corpora tell."""
        sizes = [corpus.num_bytes for _, corpus in self.train]
        return None if None in sizes else sum(size for size in sizes if size)

    def tags(self) -> list[str]:
        return sorted({config.tag for config, _ in self.corpora() if config.tag})


@dataclass(frozen=True)
class Reading:
    """What a first reading looks for."""

    clean: CleaningConfig
    languages: tuple[str, str]
    labelled: bool
    """Whether a pair is a text and its label."""


@dataclass(frozen=True)
class NoteTask:
    """A block to be looked at, and the file for what is noted of its pairs."""

    block: Block
    reading: Reading
    file: Path


def note_block(task: NoteTask) -> set[str]:
    """Write the notes of a block, whole or not at all; return the labels in it."""
    labels: set[str] = set()
    reading, rules, hashes = task.reading, [], []
    for source, target in task.block.pairs():
        if reading.labelled:
            _note_label(labels, target, task.block.corpus)
        rules.append(text_rule(reading.clean, reading.languages, source, target))
        hashes.append(pair_hashes(source, target))
    notes = np.zeros(len(rules), dtype=NOTE)
    notes["rule"] = rules
    notes["pair"], notes["source"] = np.array(hashes, dtype=np.uint64).T
    draft = task.file.with_suffix(".tmp")
    with draft.open("wb") as sink:
        np.save(sink, notes)
    sync(draft)
    draft.replace(task.file)
    return labels


@dataclass(frozen=True)
class Selection:
    """What a first reading of the training pairs says becomes of each."""

    sources: Sources
    digests: list[str]
    """Of each block, as it was first read."""
    notes: Notes
    verdicts: Verdicts
    held_out: dict[int, str]
    """Source hashes of the pairs that become `dev` or `test`."""
    labels: Labels
    """Of a classifier's training data."""
    inputs: list[dict[str, Any]]
    """What the manifest says of data sets that have no files here."""

    @classmethod
    def scan(cls, config: Config, sources: Sources, folder: Path, processes: int) -> Selection:
        """Read everything once; any fault in the input shows here, before the work.

        folder: holds the notes; of an earlier scan that was killed it holds some already.
        """
        data, clean, labelled = config.data, config.data.clean, config.task == "classification"
        if labelled:  # a label is no sentence
            clean = replace(clean, max_ratio=None)
        labels: dict[str, set[str]] = {"train": set()}
        sums = Sums(sources)
        eval_sources = _read_held_out(sources, labels if labelled else None, sums)
        reading = Reading(clean, (data.source, data.target), labelled)
        noted = _note(sources, reading, folder, processes, sums)
        notes, labels["train"] = Notes(noted.files), noted.labels
        verdicts = notes.rules()
        if clean.duplicates:
            drop_duplicates(notes, verdicts)
        if clean.overlap:
            drop_sources(notes, verdicts, eval_sources, "overlap")
        num_held_out = data.dev_size + data.test_size
        chosen = smallest_sources(notes, verdicts, num_held_out)
        if len(chosen) < num_held_out:
            raise UserError(
                f"data.dev_size + data.test_size = {num_held_out}, but the cleaning rules leave "
                f"only {len(chosen)} different {'texts' if labelled else 'sources'} in the "
                f"training corpora: hold fewer out, as data.dev_size={max(1, len(chosen) // 10)}"
            )
        drop_sources(notes, verdicts, chosen, "held_out")
        require_kept(verdicts)
        held_out = {value: "dev" if rank < data.dev_size else "test"
                    for rank, value in enumerate(chosen.tolist())}  # fmt: skip
        agreed = _agreed_labels(labels) if labelled else Labels([])
        return cls(sources, noted.digests, notes, verdicts, held_out, agreed, sums.inputs())

    def blocks(self) -> Iterator[tuple[int, Block, Verdicts]]:
        """Read the training pairs again: corpus number, block and its verdicts.

        Raises UserError if they are not what they were.
        """
        start = done = 0
        for number, block in self.sources.blocks():
            if self.digests[done : done + 1] != [block.digest]:
                raise UserError(f"{block.corpus} has changed while it was prepared: begin anew")
            yield number, block, self.verdicts[start : start + len(block)]
            start, done = start + len(block), done + 1
        if done < len(self.digests):
            raise UserError("data.train has become shorter while it was prepared: begin anew")

    @property
    def digest(self) -> str:
        """What changes when a byte of the corpora, or what becomes of a pair, does."""
        found = xxhash.xxh3_64("".join(self.digests).encode())
        found.update(self.verdicts.tobytes())
        return found.hexdigest()

    def sample(self, count: int) -> Iterator[Pair]:
        """Yield kept pairs, about `count` or all there are, chosen by their hash."""
        drawn = sampled(self.notes, self.verdicts, count)
        with ProgressBar("sampling", len(self.verdicts)) as progress_bar:
            for _, block, _ in self.blocks():
                yield from compress(block.pairs(), next(drawn).tolist())
                progress_bar.advance(len(block), len(block))


class Sums:
    """Checksums of the data sets whose files are not here to be looked at later."""

    def __init__(self, sources: Sources) -> None:
        self._corpora = [corpus for _, corpus in sources.corpora() if not corpus.files]
        self._hashes = {id(corpus): hashlib.sha256() for corpus in self._corpora}

    def add(self, block: Block) -> None:
        """Count a block in, if its corpus has no files."""
        if found := self._hashes.get(id(block.corpus)):
            lines = (f"{source}\t{target}\n" for source, target in block.pairs())
            found.update("".join(lines).encode())

    def inputs(self) -> list[dict[str, Any]]:
        """Return the sha256 of each data set, as lines of `source<TAB>target`."""
        return [
            {"dataset": str(corpus), "sha256": self._hashes[id(corpus)].hexdigest()}
            for corpus in self._corpora
        ]


def _read_held_out(sources: Sources, labels: dict[str, set[str]] | None, sums: Sums) -> Hashes:
    """Return the hashes of the sources for development and test; note their labels, if any."""
    hashes = array("Q")
    for split, (_, corpus) in sources.held_out.items():
        before = len(hashes)
        for block in corpus.blocks(BLOCK_PAIRS):
            sums.add(block)
            for source, target in block.pairs():
                hashes.append(pair_hashes(source, target)[1])
                if labels is not None:
                    _note_label(labels.setdefault(split, set()), target, corpus)
        if len(hashes) == before:
            raise UserError(f"data.{split}: {corpus} is empty")
    return np.unique(np.frombuffer(hashes, dtype=np.uint64))


@dataclass(frozen=True)
class Noted:
    """What a first reading of the training pairs leaves."""

    files: list[Path]
    digests: list[str]
    """Of each block."""
    labels: set[str]


def _note(sources: Sources, reading: Reading, folder: Path, processes: int, sums: Sums) -> Noted:
    """Have several processes note all training pairs."""
    noted = Noted([], [], set())
    handed: deque[tuple[int, int]] = deque()

    def tasks() -> Iterator[NoteTask]:
        for _, block in sources.blocks():
            sums.add(block)
            noted.digests.append(block.digest)
            # Named by content too, so that notes of another text are not taken for it.
            noted.files.append(folder / f"{len(noted.files):05}-{noted.digests[-1]}.npy")
            # Labels are not in the notes, and are read anew.
            if reading.labelled or not noted.files[-1].exists():
                handed.append((len(block), block.work))
                yield NoteTask(block, reading, noted.files[-1])
            else:
                progress_bar.leave_out(block.work)

    with (
        ProgressBar("reading", sources.num_bytes()) as progress_bar,
        closing(in_order(note_block, tasks(), processes)) as found,
    ):
        for labels in found:
            noted.labels.update(labels)
            _require_few(noted.labels, "data.train")
            progress_bar.advance(*handed.popleft())
    return noted


def _note_label(found: set[str], label: str, corpus: Corpus) -> None:
    """Add a text's label to those found so far; raises UserError where there can be no label."""
    if not label.strip():
        raise UserError(f"{corpus}: a text has no label")
    found.add(label)
    _require_few(found, str(corpus))


def _require_merges(models: list[Path]) -> None:
    for model in models:
        if (kind := read_model_type(model.read_bytes())) != "bpe":
            raise UserError(
                f"tokenizer.bpe_dropout is for BPE, and {model} is a {kind} model, which has no "
                "merges to leave out; set tokenizer.bpe_dropout=0"
            )


def _require_few(labels: set[str], place: str) -> None:
    if len(labels) > MAX_LABELS:
        example = max(labels, key=len)
        raise UserError(
            f"{place}: over {MAX_LABELS} different labels, as {example[:80]!r}: a line is "
            "LABEL<TAB>TEXT, in that order"
        )


def _agreed_labels(found: dict[str, set[str]]) -> Labels:
    """Return the labels of the training data, which must be those of the other splits too."""
    known = ", ".join(sorted(found["train"])[:10])
    if len(found["train"]) < 2:
        raise UserError(f"data.train: all texts have one label, {known}: there is nothing to learn")
    for split, labels in found.items():
        if strange := sorted(labels - found["train"]):
            raise UserError(
                f"data.{split}: the label {strange[0]!r} is none of the training data's: {known}"
            )
    return Labels(found["train"])
