"""Training examples from a store of pairs; those of translation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from seq2seq.config import Config
from seq2seq.data.batching import Order, sentence_order, worst_lens
from seq2seq.data.bpe_dropout import BPEDropout
from seq2seq.data.packing import Batch, collate
from seq2seq.data.prepared import PreparedData
from seq2seq.data.store import Ids, Store
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.training_data import Lens

ExamplesT = TypeVar("ExamplesT", bound="StoredExamples")

IdsPair = tuple[Ids, Ids]
"""Source and target ids, without special symbols."""


@dataclass(kw_only=True)
class StoredExamples(ABC):
    """The pairs of one or more corpora in a store: sentences, or texts and labels."""

    store: Store
    tokenizer: Tokenizer
    corpus_sizes: Sequence[int]
    corpus_weights: Sequence[float]
    bpe_dropout: float = 0.0
    checksum: str = ""

    @classmethod
    def of(cls: type[ExamplesT], config: Config, data: PreparedData, **options: Any) -> ExamplesT:
        """Return the training pairs of a recipe; options: further fields of a subclass."""
        return cls(
            store=data.store("train"),
            tokenizer=data.tokenizer,
            corpus_sizes=data.facts("train")["pairs_per_corpus"],
            corpus_weights=[corpus.weight for corpus in config.pairs.train],
            bpe_dropout=config.tokenizer.bpe_dropout,
            checksum=data.checksum("train"),
            **options,
        )

    @property
    @abstractmethod
    def longest(self) -> int:
        """Number of tokens of the longest example, in the longer of the two."""

    def order(self, seed: int, epoch: int) -> Order:
        """Return the numbers of one epoch's pairs, each corpus repeated by its weight."""
        return sentence_order(
            corpus_sizes=self.corpus_sizes,
            corpus_weights=self.corpus_weights,
            seed=seed,
            epoch=epoch,
        )

    @cached_property
    def source_dropout(self) -> BPEDropout:
        """BPE-dropout of the source."""
        return BPEDropout(self.tokenizer.source.model, self.bpe_dropout)

    def worst_rows(self, max_tokens: int) -> list[Ids]:
        """Return rows of the lengths for which attention needs the most memory."""
        return [
            np.full(length - 1, self.tokenizer.source.unk_id, dtype=np.int32)
            for length in worst_lens(self.longest, max_tokens)
        ]

    def describe(self, numbers: Order) -> dict[str, list[str]]:
        """Return the texts of both sides."""
        sources, targets = self.store.pairs(numbers)
        return {
            "source": self.tokenizer.source.decode([row.tolist() for row in sources]),
            "target": self.tokenizer.target.decode([row.tolist() for row in targets]),
        }


@dataclass(kw_only=True)
class Pairs(StoredExamples):
    """Sentence pairs."""

    label_is_token: bool = True

    @cached_property
    def longest(self) -> int:
        """Number of tokens of the longest sentence of either side, including its end symbol."""
        return int(max(self.store.source_lens.max(), self.store.target_lens.max()))

    @property
    def source_ratio(self) -> float:
        """Source tokens per target token, at least 1."""
        source = self.store.source_lens.sum(dtype=np.int64)
        return max(1.0, float(source / self.store.target_lens.sum(dtype=np.int64)))

    def lens(self, numbers: Order) -> Lens:
        """Return the number of target tokens of each pair."""
        return self.store.target_lens[numbers]

    def load(self, numbers: Order, positions: Order, *, seed: int, epoch: int) -> list[IdsPair]:
        """Read pairs; with BPE-dropout, they are segmented differently each time."""
        sources, targets = self.store.pairs(numbers)
        if self.bpe_dropout:
            random = generators(positions, seed=seed, epoch=epoch)
            sources = resample(sources, self.source_dropout, random, self.longest - 1)
            targets = resample(targets, self.target_dropout, random, self.longest - 1)
        return list(zip(sources, targets, strict=True))

    @cached_property
    def target_dropout(self) -> BPEDropout:
        """BPE-dropout of the target, the same as the source's if the vocabulary is the same."""
        if self.tokenizer.source is self.tokenizer.target:
            return self.source_dropout
        return BPEDropout(self.tokenizer.target.model, self.bpe_dropout)

    def sizes(self, examples: Sequence[IdsPair]) -> tuple[Lens, Lens]:
        """Return the number of tokens of each source and target, each with a special symbol."""
        lens = [len(row) + 1 for pair in examples for row in pair]
        sources, targets = np.array(lens, dtype=np.int32).reshape(-1, 2).T
        return sources, targets

    def collate(self, examples: Sequence[IdsPair]) -> Batch:
        """Make a batch of pairs."""
        sources, targets = zip(*examples, strict=True)
        return collate(sources, targets, self.tokenizer)

    def worst(self, max_tokens: int) -> Batch:
        """Return pairs that are long on both sides, since either may have the longest sentence."""
        rows = self.worst_rows(max_tokens)
        return collate(rows, rows, self.tokenizer)


def generators(positions: Order, *, seed: int, epoch: int) -> list[np.random.Generator]:
    """Return a random generator for each example, which depends on its position in the epoch."""
    return [
        np.random.Generator(
            np.random.Philox(key=[seed % 2**64, epoch], counter=[0, 0, 0, position])
        )
        for position in positions.tolist()
    ]


def resample(
    rows: Sequence[Ids],
    dropout: BPEDropout,
    random: Sequence[np.random.Generator],
    longest: int,
) -> list[Ids]:
    """Segment the same texts again with BPE-dropout.

    A row that would exceed `longest` tokens is not changed, since the memory dry run and learned
    positions are limited to that.
    """
    drawn = [dropout(row, own) for row, own in zip(rows, random, strict=True)]
    return [new if len(new) <= longest else row for new, row in zip(drawn, rows, strict=True)]
