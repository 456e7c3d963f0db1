"""Random changes of training examples: augmentation of their text, and BPE-dropout."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import lru_cache
from itertools import pairwise

import numpy as np
import sentencepiece
from numpy.random import Generator, Philox
from numpy.typing import NDArray

from seq2seq.config import PairsConfig
from seq2seq.data.store import Ids, Store
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import SentencePieces
from seq2seq.text.augment import CHANGES, Pair, join

CACHED_WORDS = 100_000
"""Maximum number of words whose segmentations are cached."""
MAX_JOINED_LEN = 32
"""Maximum number of tokens of sentences that are joined."""


def generators(positions: NDArray[np.int64], *, seed: int, epoch: int) -> list[Generator]:
    """Return a random generator for each example, seeded by its position in the epoch."""
    key = [seed % 2**64, epoch]
    return [Generator(Philox(key=key, counter=[0, 0, 0, i])) for i in positions.tolist()]


def uniform(
    positions: NDArray[np.int64], count: int, *, seed: int, epoch: int
) -> NDArray[np.float64]:
    """Return `count` numbers from [0, 1) for each example, (B, count).

    Much faster than a generator for each example.
    """
    if not len(positions):  # fewer examples than processes
        return np.empty((0, count))
    width = -(-count // 4) * 4  # a step of Philox yields four numbers
    first = int(positions.min())
    counter = [first * width // 4, 0, 1, 0]  # `generators` draw with other counters
    random = Generator(Philox(key=[seed % 2**64, epoch], counter=counter))
    rows = random.random((int(positions.max()) - first + 1, width))
    return rows[positions - first, :count]


class BPEDropout:
    """Drops merges of a SentencePiece BPE model (Provilkov et al. 2020, algorithm 1).

    As in SentencePiece, a merge is dropped with the given probability when its turn comes, and is
    not tried again. SentencePiece itself draws other numbers in every process.
    """

    def __init__(self, vocabulary: SentencePieces, probability: float) -> None:
        self.probability = probability
        costs = _costs(vocabulary)
        texts = vocabulary.pieces(range(vocabulary.size))
        self._ids = {text: i for i, text in enumerate(texts) if text in costs}
        self._costs = {text: costs[text] for text in self._ids}
        # Symbols, bytes and pieces with characters outside the vocabulary are never split.
        self._texts = [text if {text, *text} <= self._ids.keys() else None for text in texts]
        self._neighbours = {pair for text in self._ids for pair in pairwise(text)}
        self._merge = lru_cache(CACHED_WORDS)(self._compute_merges)

    def __call__(self, row: Ids, random: np.random.Generator) -> Ids:
        """Segment the text of token ids again; deterministic for a given generator state."""
        drops = _drops(random, self.probability)
        drop = next(drops)
        ids: list[int] = []
        start = 0
        for unit in self._units(row.tolist()):
            if isinstance(unit, int):
                ids.append(unit)
                continue
            dropped: tuple[int, ...] = ()
            merged, num_merges = self._merge(unit, dropped)
            while drop < start + num_merges:
                dropped += (drop - start,)
                drop = next(drops)
                merged, num_merges = self._merge(unit, dropped)
            ids += merged
            start += num_merges
        return np.array(ids, dtype=np.int32)

    def _units(self, ids: list[int]) -> Iterator[str | int]:
        """Yield texts that can be segmented independently, and ids that are never split."""
        unit = ""
        for i in ids:
            text = self._texts[i]
            if unit and (text is None or (unit[-1], text[0]) not in self._neighbours):
                yield unit
                unit = ""
            if text is None:
                yield i
            else:
                unit += text
        if unit:
            yield unit

    def _compute_merges(self, text: str, dropped: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """Return the ids of a text segmented without the merges `dropped`, and the merge count.

        Merges are numbered in the order of their application: by score, then from the left.
        """
        symbols = list(text)
        costs = [self._costs.get(left + right, math.inf) for left, right in pairwise(symbols)]
        count = 0
        # A list, not a heap: words are short.
        while costs and (cheapest := min(costs)) < math.inf:
            index = costs.index(cheapest)
            count += 1
            if count - 1 in dropped:
                costs[index] = math.inf
                continue
            symbols[index] += symbols.pop(index + 1)
            costs.pop(index)
            if index:
                costs[index - 1] = self._costs.get(symbols[index - 1] + symbols[index], math.inf)
            if index < len(costs):
                costs[index] = self._costs.get(symbols[index] + symbols[index + 1], math.inf)
        # Not lists: the garbage collector would visit all in the cache, 0.2 s every few updates.
        return tuple(self._ids[symbol] for symbol in symbols), count


def _costs(vocabulary: SentencePieces) -> dict[str, float]:
    """Return the costs of ordinary pieces: no bytes, special or longer user-defined symbols."""
    model = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.model)
    # Without any merge, only user-defined symbols have more than one character.
    unmerged = model.encode([*vocabulary.scores], out_type=str, enable_sampling=True, alpha=1.0)
    return {
        piece: -score
        for (piece, score), parts in zip(vocabulary.scores.items(), unmerged, strict=True)
        if len(piece) == 1 or piece not in parts
    }


def _drops(random: np.random.Generator, probability: float) -> Iterator[int]:
    """Yield the indices of successes in a sequence of Bernoulli trials."""
    number = -1
    while True:
        for gap in random.geometric(probability, 16).tolist():
            number += gap
            yield number


class Augmentation:
    """Changes a share of training pairs."""

    def __init__(
        self,
        config: PairsConfig,
        store: Store,
        tokenizer: Tokenizer,
        sizes: Sequence[int],
        longest: int,
    ) -> None:
        """sizes: number of pairs of each corpus. longest: see `Pairs`."""
        self.store, self.tokenizer, self.longest = store, tokenizer, longest
        prefixes = {
            tokenizer.prefix(direction, corpus.tag)
            for corpus in config.train
            for direction in config.directions_of(corpus)
        }
        self.prefixes = sorted(filter(None, prefixes), key=len, reverse=True)
        """What comes before sources. It is never changed."""
        # Pairs are joined with pairs of the same direction.
        self._bounds = np.cumsum([0, *sizes] if len(config.directions) > 1 else [0, sum(sizes)])
        rates = asdict(config.augment)
        self.rates = np.array([rates[name] for name in (*CHANGES, "join")])

    def __call__(
        self,
        sources: Sequence[Ids],
        targets: Sequence[Ids],
        indices: NDArray[np.int64],
        positions: NDArray[np.int64],
        *,
        seed: int,
        epoch: int,
    ) -> tuple[list[Ids], list[Ids]]:
        """Return the pairs, some of them changed. indices, positions: see `Examples.load`.

        A pair that would exceed the longest stored sentence is not changed: the memory dry run and
        learned positions are limited to that length.
        """
        applied = uniform(positions, len(self.rates), seed=seed, epoch=epoch) < self.rates
        changed = np.flatnonzero(applied.any(axis=1))
        random = generators(positions[changed], seed=seed, epoch=epoch)
        pairs = [
            self._change(sources[i], targets[i], int(indices[i]), applied[i], generator)
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
        self, source: Ids, target: Ids, index: int, applied: NDArray[np.bool_], random: Generator
    ) -> Pair:
        """Return the changed text of a pair. applied: whether to apply each change, and to join."""
        tag, pair = self._text(source, target)
        if applied[-1] and max(len(source), len(target)) <= MAX_JOINED_LEN:
            pair = join([pair, *self._short_pairs(index, random)])
        for change, is_applied in zip(CHANGES.values(), applied[:-1], strict=True):
            if is_applied:
                pair = change(pair, random)
        return f"{tag} {pair[0]}".lstrip(), pair[1]

    def _text(self, source: Ids, target: Ids) -> tuple[str, Pair]:
        """Return what comes before the source of a pair, if anything, and its text."""
        [text] = self.tokenizer.source.decode([source.tolist()])
        [translation] = self.tokenizer.target.decode([target.tolist()])
        prefix = next((x for x in self.prefixes if text.startswith(f"{x} ")), "")
        return prefix, (text[len(prefix) + 1 :] if prefix else text, translation)

    def _short_pairs(self, index: int, random: Generator) -> list[Pair]:
        """Return one or two random pairs without tags, or fewer if they are long."""
        end = int(np.searchsorted(self._bounds, index, side="right"))
        start, stop = self._bounds[end - 1], self._bounds[end]
        indices = random.integers(start, stop, size=random.integers(1, 3))
        rows = zip(*self.store.pairs(indices), strict=True)
        return [self._text(*row)[1] for row in rows if max(map(len, row)) <= MAX_JOINED_LEN]
