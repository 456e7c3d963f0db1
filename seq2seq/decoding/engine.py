"""What all engines share: their interface, batches, maximum lengths, scores of translations."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from seq2seq.config import DecodingConfig
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.hypothesis import Hypothesis, LengthPenalty
from seq2seq.decoding.segments import Segment
from seq2seq.errors import UserError, not_a_number

T = TypeVar("T")
Pairs = Sequence[tuple[Sequence[str], Sequence[str]]]
"""Pieces of sources and of targets."""
Advance = Callable[[int], None]
"""Called with the number of segments of a batch whose search has ended."""

SENTENCES = 32
"""Maximum number of sentences in a batch on a CPU: more are no faster, and end later."""


class Engine(ABC):
    """Searches and scores pieces of text with a model or an ensemble."""

    queue = 0
    """Number of batches whose search is started before the results of a batch are awaited."""

    def __init__(self, tokenizer: Tokenizer, max_target_len: int, name: str) -> None:
        """max_target_len: number of positions of the model. name: for errors."""
        self.tokenizer, self.max_target_len, self.name = tokenizer, max_target_len, name
        self.source, self.target = tokenizer.sentence_pieces

    def search(
        self,
        segments: Sequence[Segment],
        decoding: DecodingConfig,
        *,
        nbest: int = 1,
        scores: bool = True,
        advance: Advance | None = None,
    ) -> list[list[Hypothesis]]:
        """Search segments, and return and store in each what has been found.

        That are the `nbest` best hypotheses of each segment or fewer, the best first; samples are
        in the order of their draws. scores: with log-probabilities and scores, if they take time.
        Raises UserError if the model predicts NaN.
        """
        started = (
            (batch, self._submit(batch, decoding, nbest))
            for batch in self._batches(segments, decoding, nbest)
        )
        for batch, results in _ahead(started, self.queue):
            for segment, own in zip(batch, self._collect(batch, results, decoding), strict=True):
                segment.found = own
            if advance:
                advance(len(batch))
        self._rank(segments, decoding, nbest, scores=scores)
        return [segment.found for segment in segments]

    def _batches(
        self, segments: Sequence[Segment], decoding: DecodingConfig, nbest: int
    ) -> Iterator[list[Segment]]:
        """Yield the batches of a search; the translations of the others are empty.

        The prefixes of a batch have one length: where they differ, CTranslate2 fills the beam of
        the longer ones with equal hypotheses.
        """
        width = nbest if decoding.sample else decoding.beam
        groups: dict[int, list[Segment]] = defaultdict(list)
        for segment in segments:
            segment.found = [Hypothesis([])]
            if decoding.sample or self.max_len(segment, decoding) > 1:
                groups[len(segment.prefix)].append(segment)
        most = self._most(len(segments), decoding)
        for group in groups.values():
            lens = [(len(segment.source) + 1) * width for segment in group]
            for indices in batches(lens, decoding.batch_tokens, most):
                yield [group[i] for i in indices]

    def _rank(
        self, segments: Sequence[Segment], decoding: DecodingConfig, nbest: int, *, scores: bool
    ) -> None:
        """Keep the best hypotheses of each segment, by forced scores if the search has none."""
        unscored = [
            segment
            for segment in segments
            if (scores and any(math.isnan(each.log_prob) for each in segment.found))
            or (len(segment.found) > 1 and any(math.isnan(each.score) for each in segment.found))
        ]
        pairs = [(segment.source, each.pieces) for segment in unscored for each in segment.found]
        scored = iter(self.score(pairs, decoding))
        for segment in unscored:
            segment.found = [next(scored) for _ in segment.found]
        if not decoding.sample:
            for segment in segments:
                ranked = sorted(segment.found, key=lambda each: -each.score)
                segment.found = self._best(ranked, nbest)

    @abstractmethod
    def _most(self, count: int, decoding: DecodingConfig) -> int | None:
        """Return the maximum number of sentences in a batch, of `count` segments in all."""

    @abstractmethod
    def _submit(
        self, segments: Sequence[Segment], decoding: DecodingConfig, nbest: int
    ) -> Sequence[Any]:
        """Search a batch, or start to; return what `_collect` takes, for each segment."""

    def _collect(
        self, segments: Sequence[Segment], results: Sequence[Any], decoding: DecodingConfig
    ) -> Iterable[list[Hypothesis]]:
        """Return the hypotheses of each segment of a batch."""
        return results

    @abstractmethod
    def log_probs(self, pairs: Pairs, decoding: DecodingConfig) -> list[list[float]]:
        """Return the log-probabilities of the pieces of given targets and of their ends."""

    @abstractmethod
    def attention(self, pairs: Pairs, decoding: DecodingConfig) -> list[NDArray[np.float32]]:
        """Return the cross-attention of given targets, (target, source) pieces each."""

    def score(self, pairs: Pairs, decoding: DecodingConfig) -> list[Hypothesis]:
        """Return given targets with their log-probabilities and scores."""
        penalty = LengthPenalty(decoding.length_penalty, decoding.penalty_form)
        scored = []
        for (_, target), log_probs in zip(pairs, self.log_probs(pairs, decoding), strict=True):
            total = sum(log_probs)
            if math.isnan(total):
                raise UserError(not_a_number(self.name))
            score = total / penalty(len(log_probs))
            scored.append(Hypothesis(list(target), total, score, log_probs=log_probs))
        return scored

    def max_len(self, segment: Segment, decoding: DecodingConfig) -> int:
        """Return the maximum number of tokens of a translation, with the end symbol."""
        needed = len(segment.prefix) + sum(len(term.tokens) for term in segment.terms)
        # 0.29 * 100 is 28.999999999999996.
        length = math.floor(decoding.max_factor * len(segment.source) + 1e-9) + decoding.max_extra
        return min(max(length, decoding.min_length, needed) + 1, self.max_target_len)

    def _best(self, found: Sequence[Hypothesis], nbest: int) -> list[Hypothesis]:
        """Return the first hypotheses that differ in text: several pieces can make the same."""
        if nbest == 1:
            return list(found[:1])
        first: dict[str, Hypothesis] = {}
        texts = self.target.decode_pieces([each.pieces for each in found])
        for text, each in zip(texts, found, strict=True):
            first.setdefault(text, each)
        return list(first.values())[:nbest]


def _ahead(items: Iterable[T], count: int) -> Iterator[T]:
    """Yield items when `count` more have been taken, or there are no more."""
    taken: deque[T] = deque()
    for item in items:
        taken.append(item)
        if len(taken) > count:
            yield taken.popleft()
    yield from taken


def batches(lens: Sequence[int], batch_tokens: int, most: int | None) -> Iterator[list[int]]:
    """Yield batches of indices, longest first, of at most `batch_tokens` tokens with padding.

    most: maximum number of indices.
    """
    batch: list[int] = []
    for index in sorted(range(len(lens)), key=lambda index: -lens[index]):
        full = len(batch) == most
        if batch and (full or (len(batch) + 1) * lens[batch[0]] > batch_tokens):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
