"""Base class of the engines: pieces in, hypotheses out; batches, maximum lengths and ranking."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import floor, isnan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seq2seq.config import DecodingConfig
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.terms import Term
from seq2seq.errors import UserError, not_a_number

Pairs = Sequence[tuple[Sequence[str], Sequence[str]]]
"""Pairs of source pieces and target pieces."""
Progress = Callable[[int], None]
"""Called after the search of each batch with its number of segments."""

CPU_BATCH = 32
"""Maximum number of sentences in a batch on a CPU. Larger batches are not faster."""


class Source(NamedTuple):
    """What an engine translates."""

    pieces: Sequence[str]
    """SentencePiece pieces, including the tag, without the end symbol."""
    prefix: Sequence[str] = ()
    """Pieces at the start of the translation."""
    terms: tuple[Term, ...] = ()
    """Terms that the translation must contain, with token ids."""
    seed: tuple[int, ...] = (0,)
    """Random seed of the samples: number of the line and of the segment."""


class Hypothesis(NamedTuple):
    """A translation by an engine."""

    pieces: Sequence[str]
    """SentencePiece pieces without the end symbol."""
    log_prob: float | None = None
    """Sum of the log-probabilities of the pieces and the end symbol, in nats; None if the search
    does not know it. CTranslate2's is for ranking only: it is not exact enough for output."""


class Engine(ABC):
    """Searches for translations and scores them, with a model or an ensemble."""

    batch_tokens = 16_384
    """Default of `decoding.batch_tokens`."""
    search_size: int | None = None
    """Number of requests that are searched together. None: as many as there are."""
    has_exact_scores = True
    """Whether the search returns the same log-probabilities as `log_probs`."""

    def __init__(self, tokenizer: Tokenizer, max_target_len: int, name: str) -> None:
        """max_target_len: number of positions of the model. name: name of the model in errors."""
        self.tokenizer, self.max_target_len, self.name = tokenizer, max_target_len, name
        self.source, self.target = tokenizer.translation_vocabularies
        self.language_first = int(self.source.language_first)
        """Number of symbols that translations start with; they are first in the sources."""

    def search(
        self,
        sources: Sequence[Source],
        decoding: DecodingConfig,
        *,
        nbest: int = 1,
        progress: Progress | None = None,
    ) -> list[list[Hypothesis]]:
        """Return at most `nbest` hypotheses of each source, the best first.

        Samples stay in the order in which they were drawn. Raises UserError if the model predicts
        NaN.
        """
        # A source without room for a token is translated as empty.
        found = [[Hypothesis([])] for _ in sources]
        batches = list(self._batches(sources, decoding, nbest))
        searched = self._search([[sources[i] for i in x] for x in batches], decoding, nbest)
        for batch, results in zip(batches, searched, strict=True):
            for i, hypotheses in zip(batch, results, strict=True):
                found[i] = hypotheses
            if progress:
                progress(len(batch))
        return found if decoding.sample else self._ranked(sources, found, decoding, nbest)

    def _batches(
        self, sources: Sequence[Source], decoding: DecodingConfig, nbest: int
    ) -> Iterator[list[int]]:
        """Yield batches of indices of sources.

        All prefixes of a batch have equal length: with different lengths, CTranslate2 fills the
        beams of the longer prefixes with duplicates.
        """
        width = nbest if decoding.sample else decoding.beam
        groups: dict[int, list[int]] = defaultdict(list)
        for i, source in enumerate(sources):
            if decoding.sample or self.max_len(source, decoding) > 1:
                groups[len(source.prefix)].append(i)
        max_tokens = decoding.batch_tokens or self.batch_tokens
        max_sentences = self._max_sentences(len(sources), width)
        for group in groups.values():
            lens = [(len(sources[i].pieces) + 1) * width for i in group]
            for indices in batches(lens, max_tokens, max_sentences):
                yield [group[i] for i in indices]

    def _ranked(
        self,
        sources: Sequence[Source],
        found: Sequence[list[Hypothesis]],
        decoding: DecodingConfig,
        nbest: int,
    ) -> list[list[Hypothesis]]:
        """Return the best hypotheses of each source, after computing missing scores."""
        unknown = [
            (source.pieces, x.pieces)
            for source, hypotheses in zip(sources, found, strict=True)
            if len(hypotheses) > 1
            for x in hypotheses
            if x.log_prob is None
        ]
        sums = map(sum, self.log_probs(unknown, decoding))
        ranked = []
        for hypotheses in found:
            if len(hypotheses) > 1:
                scored = [
                    x._replace(log_prob=next(sums)) if x.log_prob is None else x for x in hypotheses
                ]
                scored.sort(key=lambda x: -self.score(decoding, x.log_prob, x.pieces))
                hypotheses = self._distinct(scored, nbest)
            ranked.append(hypotheses)
        return ranked

    @abstractmethod
    def _max_sentences(self, count: int, width: int) -> int:
        """Return the maximum number of sentences in a batch, for `count` sources.

        width: number of hypotheses of each sentence.
        """

    @abstractmethod
    def _search(
        self, batches: Sequence[Sequence[Source]], decoding: DecodingConfig, nbest: int
    ) -> Iterator[Iterable[list[Hypothesis]]]:
        """Yield the hypotheses of each source of each batch."""

    def log_probs(self, pairs: Pairs, decoding: DecodingConfig) -> list[list[float]]:
        """Return the log-probabilities of the target pieces and end symbol of each pair.

        Raises UserError for NaN.
        """
        rows = self._log_probs(pairs, decoding) if pairs else []
        if any(isnan(sum(row)) for row in rows):
            raise UserError(not_a_number(self.name))
        return rows

    @abstractmethod
    def _log_probs(self, pairs: Pairs, decoding: DecodingConfig) -> list[list[float]]:
        """Return the log-probabilities of the target pieces and end symbol of each pair."""

    @abstractmethod
    def attention(self, pairs: Pairs, decoding: DecodingConfig) -> list[NDArray[np.float32]]:
        """Return the cross-attention of each pair, (target pieces, source pieces).

        It is averaged over the heads. Targets must not be empty.
        """

    def score(
        self, decoding: DecodingConfig, log_prob: float | None, pieces: Sequence[str]
    ) -> float:
        """Return a known log-probability divided by the length penalty.

        The symbol of a language at the start of translations counts, as in transformers.
        """
        assert log_prob is not None
        return log_prob / length_penalty(decoding, self.language_first + len(pieces) + 1)

    def with_language(self, attention: NDArray[np.float32], length: int) -> NDArray[np.float32]:
        """Return the attention, (T, S), to a source of `length` pieces with its first symbol."""
        padded = np.zeros((len(attention), length), dtype=np.float32)
        padded[:, self.language_first :] = attention[:, : length - self.language_first]
        return padded

    def max_len(self, source: Source, decoding: DecodingConfig) -> int:
        """Return the maximum length of a translation in tokens, including the end symbol."""
        needed = len(source.prefix) + sum(len(term.tokens) for term in source.terms)
        # In floating point, 0.29 * 100 is less than 29.
        length = floor(decoding.max_factor * len(source.pieces) + 1e-9) + decoding.max_extra
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
