"""Augmentation of training pairs: their text is changed at random, and encoded again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from seq2seq.config import AugmentConfig
from seq2seq.data.random_numbers import generators, uniform
from seq2seq.data.store import Ids, Store
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.text.augment import CHANGES, Pair, join

SHORT = 32
"""Maximum number of tokens of sentences that are joined."""


class Augmentation:
    """Changes a share of training pairs."""

    def __init__(
        self,
        config: AugmentConfig,
        store: Store,
        tokenizer: Tokenizer,
        tags: Collection[str],
        longest: int,
    ) -> None:
        """tags: symbols before sources. They are never changed. longest: see `Pairs`."""
        self.store, self.tokenizer, self.tags, self.longest = store, tokenizer, tags, longest
        rates = asdict(config)
        self.rates = np.array([rates[name] for name in (*CHANGES, "join")])

    def __call__(
        self,
        sources: Sequence[Ids],
        targets: Sequence[Ids],
        positions: NDArray[np.int64],
        *,
        seed: int,
        epoch: int,
    ) -> tuple[list[Ids], list[Ids]]:
        """Return the pairs, some of them changed. positions: their positions in the epoch.

        A pair that would exceed the longest stored sentence is not changed: the memory dry run and
        learned positions are limited to that length.
        """
        applied = uniform(positions, len(self.rates), seed=seed, epoch=epoch) < self.rates
        changed = np.flatnonzero(applied.any(axis=1))
        random = generators(positions[changed], seed=seed, epoch=epoch)
        pairs = [
            self._change(sources[i], targets[i], applied[i], generator)
            for i, generator in zip(changed.tolist(), random, strict=True)
        ]
        rows = [
            vocabulary.encode([pair[side] for pair in pairs])
            for side, vocabulary in enumerate((self.tokenizer.source, self.tokenizer.target))
        ]
        new_sources, new_targets = list(sources), list(targets)
        for i, *pair in zip(changed.tolist(), *rows, strict=True):
            lens = list(map(len, pair))
            if min(lens) > 0 and max(lens) < self.longest:
                new_sources[i], new_targets[i] = (np.array(row, dtype=np.int32) for row in pair)
        return new_sources, new_targets

    def _change(
        self, source: Ids, target: Ids, applied: NDArray[np.bool_], random: Generator
    ) -> Pair:
        """Return the changed text of a pair. applied: whether to apply each change, and to join."""
        tag, pair = self._text(source, target)
        if applied[-1] and max(len(source), len(target)) <= SHORT:
            pair = join([pair, *self._short_pairs(random)])
        for change, is_applied in zip(CHANGES.values(), applied[:-1], strict=True):
            if is_applied:
                pair = change(pair, random)
        return f"{tag} {pair[0]}".lstrip(), pair[1]

    def _text(self, source: Ids, target: Ids) -> tuple[str, Pair]:
        """Return the tag of a pair, if any, and its text."""
        [text] = self.tokenizer.source.decode([source.tolist()])
        [translation] = self.tokenizer.target.decode([target.tolist()])
        tag, _, rest = text.partition(" ")
        return (tag, (rest, translation)) if tag in self.tags else ("", (text, translation))

    def _short_pairs(self, random: Generator) -> list[Pair]:
        """Return one or two random pairs without tags, or fewer if they are long."""
        indices = random.integers(len(self.store), size=random.integers(1, 3))
        rows = zip(*self.store.pairs(indices), strict=True)
        return [self._text(*row)[1] for row in rows if max(map(len, row)) <= SHORT]
