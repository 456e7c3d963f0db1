"""Which pairs of a recipe's corpora are kept, dropped or held out: what a first reading learns."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from seq2seq.config import Config, CorpusConfig
from seq2seq.data.cleaning import HashSet, repeated, text_hash, text_rule
from seq2seq.data.corpus import Corpus, open_corpus, open_labelled
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Alphabet, Labels
from seq2seq.errors import UserError

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
        sources = cls(train, held_out, own_tokenizer)
        for tag in sources.tags():
            if own_tokenizer and not own_tokenizer.source.knows(tag):
                raise UserError(
                    f"data.train: tag={tag!r} is no symbol of {models[0]}: train that model with "
                    "it as user_defined_symbols"
                )
        return sources

    def corpora(self) -> list[tuple[CorpusConfig, Corpus]]:
        return [*self.train, *self.held_out.values()]

    def files(self) -> list[Path]:
        return [path for _, corpus in self.corpora() for path in corpus.files]

    def tags(self) -> list[str]:
        return sorted({config.tag for config, _ in self.corpora() if config.tag})


class Selection:
    """What the first reading learned: which pairs to keep, to drop and to hold out."""

    def __init__(self, config: Config, sources: Sources) -> None:
        self.config = config
        self.sources = sources
        self.clean = config.data.clean
        if config.task == "classification":  # a label is no sentence
            self.clean = replace(self.clean, max_ratio=None)
        self.num_read = 0
        self.eval_sources = HashSet([])
        self.repeated_pairs = HashSet([])
        self.held_out: dict[int, str] = {}
        """Source hashes of the pairs that become `dev` or `test`."""
        self.labels = Labels([])
        """Of a classifier's training data."""

    @classmethod
    def scan(cls, config: Config, sources: Sources) -> Selection:
        """Read everything once; any fault in the input shows here, before the work."""
        self = cls(config, sources)
        clean, data = self.clean, config.data
        eval_hashes = array("Q")
        labels: dict[str, set[str]] = {"train": set()}
        for split, (_, corpus) in sources.held_out.items():
            before, found = len(eval_hashes), labels.setdefault(split, set())
            for source, target in corpus:
                eval_hashes.append(text_hash(source))
                if config.task == "classification":
                    _note_label(found, target, corpus)
            if len(eval_hashes) == before:
                raise UserError(f"data.{split}: {corpus} is empty")
        if clean.overlap:
            self.eval_sources = HashSet(np.array(eval_hashes, dtype=np.uint64))
        pair_hashes = array("Q")
        num_held_out = data.dev_size + data.test_size
        smallest = _SmallestHashes(num_held_out)
        for _, corpus in sources.train:
            before = self.num_read
            for source, target in corpus:
                self.num_read += 1
                if config.task == "classification":
                    _note_label(labels["train"], target, corpus)
                if clean.duplicates:
                    pair_hashes.append(text_hash(source, target))
                if num_held_out and text_rule(clean, source, target) is None:
                    value = text_hash(source)
                    if value not in self.eval_sources:
                        smallest.add(value)
            if self.num_read == before:
                raise UserError(f"data.train: {corpus} is empty")
        if config.task == "classification":
            self.labels = _agreed_labels(labels)
        self.repeated_pairs = HashSet(repeated(np.frombuffer(pair_hashes, dtype=np.uint64)))
        if len(smallest) < num_held_out:
            raise UserError(
                f"data.dev_size + data.test_size = {num_held_out}, but the training corpora have "
                f"only {len(smallest)} different source sentences: hold fewer out with smaller ones"
            )
        for rank, value in enumerate(smallest.sorted()):
            self.held_out[value] = "dev" if rank < data.dev_size else "test"
        return self

    def pairs(self) -> Iterator[tuple[int, str, str, str | None]]:
        """Yield corpus number, source, target and the rule that drops the pair, if any."""
        clean = self.clean
        self.repeated_pairs.reset()
        for number, (_, corpus) in enumerate(self.sources.train):
            for source, target in corpus:
                rule = text_rule(clean, source, target)
                if rule is None and len(self.repeated_pairs):
                    rule = self._repetition(text_hash(source, target))
                if rule is None and (self.held_out or len(self.eval_sources)):
                    value = text_hash(source)
                    if value in self.eval_sources:
                        rule = "overlap"
                    elif value in self.held_out:
                        rule = "held_out"
                yield number, source, target, rule

    def _repetition(self, value: int) -> str | None:
        if value not in self.repeated_pairs or self.repeated_pairs.take(value):
            return None
        return "duplicates"

    def sample(self) -> Iterator[tuple[str, str]]:
        """Yield kept pairs, at most about `tokenizer.sample`, chosen by their hash."""
        bound = 2**64 * self.config.tokenizer.sample // max(self.num_read, 1)
        for _, source, target, rule in self.pairs():
            if rule is None and text_hash(target, source) < bound:
                yield source, target


def _note_label(found: set[str], label: str, corpus: Corpus) -> None:
    """Add a text's label to those found so far; raises UserError where there can be no label."""
    if not label.strip():
        raise UserError(f"{corpus}: a text has no label")
    found.add(label)
    if len(found) > MAX_LABELS:
        raise UserError(
            f"{corpus}: over {MAX_LABELS} different labels, as {label[:80]!r}: a line is "
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


class _SmallestHashes:
    """The `count` smallest different hashes of a stream."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._members: set[int] = set()
        self._heap: list[int] = []

    def __len__(self) -> int:
        return len(self._members)

    def add(self, value: int) -> None:
        if value in self._members:
            return
        if len(self._heap) < self._count:
            heapq.heappush(self._heap, -value)
            self._members.add(value)
        elif self._heap and value < -self._heap[0]:
            self._members.remove(-heapq.heapreplace(self._heap, -value))
            self._members.add(value)

    def sorted(self) -> list[int]:
        return sorted(self._members)
