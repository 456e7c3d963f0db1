"""The hypotheses of a search, in main memory: which of them end, which go on, and when to stop.

B is the number of slots for sentences, W the beam width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

FREE = -1
"""The number of the sentence in a slot without one."""


@dataclass
class Hypothesis:
    """A finished translation: its tokens and score, and where asked for what these stand for."""

    tokens: list[int]
    """Ids, without the end symbol."""
    log_prob: float
    """Sum over the tokens and the end symbol, in nats."""
    score: float
    """log_prob divided by the length penalty, plus the bonus if any; higher is better. That of a
    text in several parts is their sum."""
    text: str = ""
    pieces: Sequence[str] = ()
    """The tokens as the tokenizer writes them, with the end symbol."""
    log_probs: Sequence[float] = ()
    """Of each token and of the end symbol."""
    attention: Any = field(default=None, repr=False, compare=False)
    """(T, S), a tensor: of each token to the source with its end symbol."""
    alignment: Sequence[tuple[int, int]] = ()
    """Source word and target word, counted from 0."""


@dataclass(frozen=True)
class LengthPenalty:
    """Divisor of a hypothesis's log-probability; `length` includes the end symbol."""

    alpha: float
    form: Literal["wu", "power"] = "wu"

    def __call__(self, length: int) -> float:
        """wu: ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14); power: length^alpha."""
        base = (5 + length) / 6 if self.form == "wu" else length
        return float(base**self.alpha)


@dataclass
class Beams:
    """The hypotheses of the sentences that are searched at the same time."""

    max_lens: Sequence[int]
    """Of each sentence: the maximum number of tokens of a hypothesis with its end symbol."""
    width: int
    bos_id: int
    eos_id: int
    penalty: LengthPenalty
    nbest: int = 1
    lookahead: int | None = None
    text_of: Callable[[list[int]], object] = tuple
    copies: int = 1
    """Number of consecutive sentences that start together."""
    sentences: NDArray[Any] = field(init=False)
    """(B,): the number of the sentence in each slot, or `FREE`."""
    lengths: NDArray[Any] = field(init=False)
    """(B,): the number of tokens of the live hypotheses, start symbol included; also the length of
    one that ends now."""
    tokens: NDArray[Any] = field(init=False)
    """(B, W, L): those tokens, at the end of each row, after start symbols."""
    log_probs: NDArray[Any] = field(init=False)
    """(B, W): sums over the tokens; -inf for rows without a hypothesis."""

    def __post_init__(self) -> None:
        self.sentences = np.empty(0, dtype=np.int64)
        self.lengths = np.empty(0, dtype=np.int64)
        self.tokens = np.empty((0, self.width, 1), dtype=np.int64)
        self.log_probs = np.empty((0, self.width), dtype=np.float32)
        self._limits = np.empty(0, dtype=np.int64)
        self._worst = np.empty(0)
        lengths = range(1, max(self.max_lens, default=0) + 1)
        self._penalties = np.array([1.0, *map(self.penalty, lengths)])
        self.results: dict[int, list[Hypothesis]] = {}

    def __len__(self) -> int:
        return len(self.sentences)

    @property
    def num_candidates(self) -> int:
        """How many continuations of a sentence `choose` needs: at most W of them end."""
        return 1 if self.width == 1 else 2 * self.width

    @property
    def newest(self) -> NDArray[Any]:
        """The newest token of each hypothesis, (B, W)."""
        return np.ascontiguousarray(self.tokens[:, :, -1])

    @property
    def is_free(self) -> NDArray[Any]:
        """(B,): whether a slot has no sentence."""
        return self.sentences == FREE

    @property
    def is_expired(self) -> NDArray[Any]:
        """(B,): whether a free slot has made as many steps as its sentence was allowed to."""
        return self.is_free & (self.lengths >= self._limits)

    @property
    def must_end(self) -> NDArray[Any]:
        """(B,): whether the hypotheses of a sentence have their maximum length."""
        return (self._limits == self.lengths) & ~self.is_free

    @property
    def has_result(self) -> NDArray[Any]:
        """(B,): whether a hypothesis of the sentence has ended."""
        return np.array([bool(self.results.get(number)) for number in self.sentences.tolist()])

    def start(self, numbers: Sequence[int]) -> None:
        """Add sentences, by their numbers, after the others."""
        count = len(numbers)
        self.sentences = np.append(self.sentences, np.array(numbers))
        self.lengths = np.append(self.lengths, np.ones(count, dtype=np.int64))
        limits = [self.max_lens[number] for number in numbers]
        self._limits = np.append(self._limits, np.array(limits))
        self._worst = np.append(self._worst, np.full(count, -np.inf))
        tokens = np.full((count, self.width, self.tokens.shape[-1]), self.bos_id)
        self.tokens = np.concatenate([self.tokens, tokens])
        log_probs = np.full((count, self.width), -np.inf, dtype=np.float32)
        log_probs[:, 0] = 0.0  # all rows of a sentence are equal before the first step
        self.log_probs = np.concatenate([self.log_probs, log_probs])
        self.results |= {number: [] for number in numbers}

    def keep(self, slots: NDArray[Any]) -> None:
        """Drop all other slots."""
        self.sentences, self.lengths = self.sentences[slots], self.lengths[slots]
        self.tokens, self.log_probs = self.tokens[slots], self.log_probs[slots]
        self._limits, self._worst = self._limits[slots], self._worst[slots]

    def choose(
        self,
        ranks: NDArray[Any],
        totals: NDArray[Any],
        origins: NDArray[Any],
        chosen: NDArray[Any],
        bonus: NDArray[Any] | None = None,
    ) -> tuple[NDArray[Any], list[tuple[int, list[Hypothesis]]]]:
        """Choose the hypotheses that go on among up to 2W continuations of each sentence.

        ranks: (B, 2W), the highest first; -inf for none. totals: their log-probabilities. origins:
        the hypothesis that each continues; chosen: its new token. bonus: (B, W), of the hypotheses
        that end now. Returns the origins of the new hypotheses, (B, W), and the sentences that are
        done, with their results.
        """
        ended = chosen == self.eos_id
        for slot, rank in np.argwhere((ended & np.isfinite(ranks))[:, : self.width]):
            self._finish(slot, totals[slot, rank], origins[slot, rank], bonus)
        # At most W of 2W continuations end, so at least W remain.
        order = np.argsort(ended, axis=1, kind="stable")[:, : self.width]
        ranks = np.take_along_axis(np.where(ended, -np.inf, ranks), order, axis=1)
        totals = np.take_along_axis(totals, order, axis=1)
        self.log_probs = np.where(ranks == -np.inf, -np.inf, totals).astype(np.float32)
        origins = np.take_along_axis(origins, order, axis=1)
        chosen = np.take_along_axis(chosen, order, axis=1)
        done = self._done()
        longest = int(self.lengths.max())
        old = self.tokens[:, :, -longest:]
        if self.width > 1:
            old = np.take_along_axis(old, origins[:, :, None], axis=1)
        self.tokens = np.concatenate([old, chosen[:, :, None]], axis=2)
        self.lengths += 1
        slots = np.flatnonzero(done)
        numbers = self.sentences[slots].tolist()
        self.sentences[slots], self.log_probs[slots] = FREE, -np.inf
        return origins, [(number, self.results.pop(number)) for number in numbers]

    def _done(self) -> NDArray[Any]:
        """Return whether each sentence is done."""
        highest = self.log_probs.max(axis=1).astype(np.float64)
        horizon = self._limits
        if self.lookahead is not None:
            horizon = np.minimum(horizon, self.lengths + self.lookahead)
        done = (highest == -np.inf) | (self._worst >= highest / self._penalties[horizon])
        if self.width == 1:
            done |= self._worst > -np.inf
        return done & ~self.is_free

    def _finish(self, slot: int, total: float, origin: int, bonus: NDArray[Any] | None) -> None:
        """Insert a hypothesis into the best of its sentence, which have different texts."""
        length, found = int(self.lengths[slot]), self.results[int(self.sentences[slot])]
        path = self.tokens[slot, origin, self.tokens.shape[-1] - length + 1 :].tolist()
        score = float(total) / self._penalties[length]
        if bonus is not None:
            score += float(bonus[slot, origin])
        new = Hypothesis(path, float(total), float(score))
        if self.nbest > 1:
            text = self.text_of(path)
            for same in [old for old in found if self.text_of(old.tokens) == text]:
                if same.score >= new.score:
                    return
                found.remove(same)
        found.append(new)
        found.sort(key=lambda hypothesis: -hypothesis.score)
        del found[self.nbest :]
        if len(found) == self.nbest:
            self._worst[slot] = found[-1].score
