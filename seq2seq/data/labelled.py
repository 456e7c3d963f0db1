"""Training examples of a classifier: texts with labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from seq2seq.data.batching import Order
from seq2seq.data.packing import Batch, pack
from seq2seq.data.pairs import IdsPair, StoredExamples, generators, resample
from seq2seq.data.store import Ids
from seq2seq.data.training_data import Lens
from seq2seq.data.vocabulary import Vocabulary


@dataclass(kw_only=True)
class LabelledTexts(StoredExamples):
    """Texts in a store, with labels as targets; long texts are truncated in the middle."""

    context: int
    label_is_token: bool = False
    source_ratio: float = 1.0

    @cached_property
    def longest(self) -> int:
        """Number of tokens of the longest text, including its start symbol."""
        return min(self.context, int(self.store.source_lens.max()))

    def lens(self, numbers: Order) -> Lens:
        """Return the number of tokens of each text."""
        return np.minimum(self.store.source_lens[numbers], self.context)

    def load(self, numbers: Order, positions: Order, *, seed: int, epoch: int) -> list[IdsPair]:
        """Read texts and labels; with BPE-dropout, texts are segmented differently each time."""
        texts, labels = self.store.pairs(numbers)
        if self.bpe_dropout:
            random = generators(positions, seed=seed, epoch=epoch)
            texts = [both_ends(text, self.context - 1) for text in texts]
            texts = resample(texts, self.source_dropout, random, 2 * self.context)
        return list(zip(texts, labels, strict=True))

    def sizes(self, examples: Sequence[IdsPair]) -> tuple[Lens, Lens]:
        """Return the number of tokens of each text, and 0 for the decoder."""
        lens = np.array([min(len(text) + 1, self.context) for text, _ in examples], dtype=np.int32)
        return lens, np.zeros_like(lens)

    def collate(self, examples: Sequence[IdsPair]) -> Batch:
        """Make a batch of texts and labels."""
        texts, labels = zip(*examples, strict=True)
        rows = begin_rows(texts, self.tokenizer.source, self.context)
        label_ids = np.concatenate(labels).astype(np.int64)
        return Batch((pack(rows),), torch.from_numpy(label_ids), len(rows))

    def worst(self, max_tokens: int) -> Batch:
        """Return texts of the lengths for which attention needs the most memory."""
        label = np.zeros(1, dtype=np.int32)
        return self.collate([(row, label) for row in self.worst_rows(max_tokens)])


def begin_rows(texts: Sequence[Ids], vocabulary: Vocabulary, context: int) -> list[Ids]:
    """Prepend the start symbol to each text and truncate it to the context."""
    start = np.array([vocabulary.bos_id], dtype=np.int32)
    return [np.concatenate([start, both_ends(text, context - 1)]) for text in texts]


def both_ends(text: Ids, max_len: int) -> Ids:
    """Truncate a text to `max_len` tokens: a quarter from its beginning, the rest from its end.

    Beginning and end are more informative than the middle (Sun et al. 2019, section 5.3.1).
    """
    if len(text) <= max_len:
        return text
    head = max_len // 4
    return np.concatenate([text[:head], text[len(text) - (max_len - head) :]])
