"""Base class of the engines: batches, maximum lengths, ranking and scoring of translations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import floor, isnan

import numpy as np
from numpy.typing import NDArray

from seq2seq.config import DecodingConfig
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.segments import Hypothesis, Segment
from seq2seq.errors import UserError, not_a_number

Pairs = Sequence[tuple[Sequence[str], Sequence[str]]]
"""Pairs of source pieces and target pieces."""
Progress = Callable[[int], None]
"""Called after the search of each batch with its number of segments."""

CPU_BATCH = 32
"""Maximum number of sentences in a batch on a CPU. Larger batches are not faster."""


class Engine(ABC):
    """Searches for translations and scores them, with a model or an ensemble."""

    batch_tokens = 16_384
    """Default of `decoding.batch_tokens`."""

    def __init__(self, tokenizer: Tokenizer, max_target_len: int, name: str) -> None:
        """max_target_len: number of positions of the model. name: name of the model in errors."""
        self.tokenizer, self.max_target_len, self.name = tokenizer, max_target_len, name
        self.source, self.target = tokenizer.translation_vocabularies

    def search(
        self,
        segments: Sequence[Segment],
        decoding: DecodingConfig,
        *,
        nbest: int = 1,
        scores: bool = True,
        progress: Progress | None = None,
    ) -> list[list[Hypothesis]]:
        """Return at most `nbest` hypotheses of each segment, the best first, and store them in it.

        Samples stay in the order in which they were drawn. scores: compute log-probabilities and
        scores even if the search does not return them. Raises UserError if the model predicts NaN.
        """
        batches = list(self._batches(segments, decoding, nbest))
        for batch, found in zip(batches, self._search(batches, decoding, nbest), strict=True):
            for segment, hypotheses in zip(batch, found, strict=True):
                segment.hypotheses = hypotheses
            if progress:
                progress(len(batch))
        self._rank(segments, decoding, nbest, scores=scores)
        return [segment.hypotheses for segment in segments]

    def _batches(
        self, segments: Sequence[Segment], decoding: DecodingConfig, nbest: int
    ) -> Iterator[list[Segment]]:
        """Yield batches of segments. A segment without room for a token is translated as empty.

        All prefixes of a batch have equal length: with different lengths, CTranslate2 fills the
        beams of the longer prefixes with duplicates.
        """
        width = nbest if decoding.sample else decoding.beam
        groups: dict[int, list[Segment]] = defaultdict(list)
        for segment in segments:
            segment.hypotheses = [Hypothesis([])]
            if decoding.sample or self.max_len(segment, decoding) > 1:
                groups[len(segment.prefix)].append(segment)
        max_tokens = decoding.batch_tokens or self.batch_tokens
        max_sentences = self._max_sentences(len(segments), width)
        for group in groups.values():
            lens = [(len(segment.source) + 1) * width for segment in group]
            for indices in batches(lens, max_tokens, max_sentences):
                yield [group[i] for i in indices]

    def _rank(
        self, segments: Sequence[Segment], decoding: DecodingConfig, nbest: int, *, scores: bool
    ) -> None:
        """Keep the best hypotheses of each segment, after computing missing scores."""
        unscored = [
            segment
            for segment in segments
            if (scores and any(isnan(x.log_prob) for x in segment.hypotheses))
            or (len(segment.hypotheses) > 1 and any(isnan(x.score) for x in segment.hypotheses))
        ]
        self.score(unscored, decoding)
        if not decoding.sample:
            for segment in segments:
                ranked = sorted(segment.hypotheses, key=lambda hypothesis: -hypothesis.score)
                segment.hypotheses = self._distinct(ranked, nbest)

    @abstractmethod
    def _max_sentences(self, count: int, width: int) -> int:
        """Return the maximum number of sentences in a batch, for `count` segments.

        width: number of hypotheses of each sentence.
        """

    @abstractmethod
    def _search(
        self, batches: Sequence[Sequence[Segment]], decoding: DecodingConfig, nbest: int
    ) -> Iterator[Iterable[list[Hypothesis]]]:
        """Yield the hypotheses of each segment of each batch."""

    @abstractmethod
    def log_probs(self, pairs: Pairs, decoding: DecodingConfig) -> list[list[float]]:
        """Return the log-probabilities of the target pieces and end symbol of each pair."""

    @abstractmethod
    def attention(self, pairs: Pairs, decoding: DecodingConfig) -> list[NDArray[np.float32]]:
        """Return the cross-attention of each pair, (target pieces, source pieces).

        It is averaged over the heads. Targets must not be empty.
        """

    def score(self, segments: Sequence[Segment], decoding: DecodingConfig) -> None:
        """Set the log-probabilities and the score of each hypothesis of the segments."""
        hypotheses = [x for segment in segments for x in segment.hypotheses]
        pairs = [(segment.source, x.pieces) for segment in segments for x in segment.hypotheses]
        rows = self.log_probs(pairs, decoding)
        for hypothesis, log_probs in zip(hypotheses, rows, strict=True):
            hypothesis.log_probs, hypothesis.log_prob = log_probs, sum(log_probs)
            if isnan(hypothesis.log_prob):
                raise UserError(not_a_number(self.name))
            hypothesis.score = hypothesis.log_prob / length_penalty(decoding, len(log_probs))

    def max_len(self, segment: Segment, decoding: DecodingConfig) -> int:
        """Return the maximum length of a translation in tokens, including the end symbol."""
        needed = len(segment.prefix) + sum(len(term.tokens) for term in segment.terms)
        # In floating point, 0.29 * 100 is less than 29.
        length = floor(decoding.max_factor * len(segment.source) + 1e-9) + decoding.max_extra
        return min(max(length, decoding.min_length, needed) + 1, self.max_target_len)

    def _distinct(self, ranked: Sequence[Hypothesis], nbest: int) -> list[Hypothesis]:
        """Return the first `nbest` hypotheses with different texts."""
        if nbest == 1:
            return list(ranked[:1])
        first: dict[str, Hypothesis] = {}  # different pieces may have equal texts
        texts = self.target.decode_pieces([hypothesis.pieces for hypothesis in ranked])
        for text, hypothesis in zip(texts, ranked, strict=True):
            first.setdefault(text, hypothesis)
        return list(first.values())[:nbest]


def length_penalty(decoding: DecodingConfig, length: int) -> float:
    """Return the divisor of a log-probability; length: tokens, including the end symbol.

    `wu`: ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14). `power`: length^alpha.
    """
    base = (5 + length) / 6 if decoding.penalty_form == "wu" else length
    return float(base**decoding.length_penalty)


def batches(lens: Sequence[int], batch_tokens: int, max_sentences: int) -> Iterator[list[int]]:
    """Yield batches of indices, longest first, of at most `batch_tokens` tokens with padding."""
    batch: list[int] = []
    for index in sorted(range(len(lens)), key=lambda index: -lens[index]):
        full = len(batch) == max_sentences
        if batch and (full or (len(batch) + 1) * lens[batch[0]] > batch_tokens):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
