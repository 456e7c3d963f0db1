"""Beam search over any model with a `step` function; greedy search is a beam of one.

B is the number of sentences in the search, W the beam width, V the vocabulary size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seq2seq.decoding.beams import Beams, Hypothesis
from seq2seq.decoding.continuations import Best, best_of, only
from seq2seq.decoding.workers import Waiting

NAN_MESSAGE = "a log-probability is not a number"
REFILL = 1 / 4
"""Share of free places with which waiting sentences start. With more, places are empty for longer;
with fewer, fewer sentences are encoded together."""
SHRINK = 1 / 4
"""Share of free places with which a GPU drops them, when nothing waits: it has to copy the rest."""


class Continuations(Protocol):
    """What may follow each hypothesis."""

    def all(self) -> Tensor:
        """Return the log-probabilities of all tokens, (B, W, V)."""

    def best(self, live: Tensor, count: int, eos_id: int, must_end: NDArray[np.bool_]) -> Best:
        """Return the best continuations of each sentence; live: of the hypotheses, (B, W)."""


class Decoder(Protocol):
    """A model with the state of its sentences, as the search needs it."""

    device: torch.device

    def start(self, numbers: Sequence[int]) -> None:
        """Add sentences, by their numbers, after the others."""

    def step(self, tokens: Tensor) -> Continuations:
        """Feed the newest token of each hypothesis, (B, W)."""

    def select(self, origins: Tensor) -> None:
        """Continue in each sentence with its hypotheses `origins`, (B, W)."""

    def keep(self, places: Sequence[int]) -> None:
        """Drop all sentences but these."""


@dataclass(frozen=True)
class Plan:
    """How many sentences are searched at the same time."""

    sizes: Sequence[int]
    """Memory that each sentence takes, in any unit, the largest first."""
    capacity: int
    """Memory for all of them."""
    most: int
    """Maximum number of sentences."""

    def room(self, used: Sequence[int], following: int) -> int:
        """Return how many sentences from `following` on fit beside those that are used."""
        left = self.capacity - sum(self.sizes[number] for number in used)
        fit = min(left // max(1, self.sizes[following]), self.most - len(used))
        return fit if used else max(1, fit)


@dataclass(frozen=True)
class Live:
    """The unfinished hypotheses of a search."""

    sentences: list[int]
    """The numbers of the B unfinished sentences."""
    tokens: Tensor
    """(B, W, L), each with the start symbol; L is also the length of a hypothesis that ends now."""
    log_probs: Tensor
    """Sums over the tokens, (B, W); -inf for rows without a hypothesis."""


Rule = Callable[[Live, Tensor], Tensor]
"""(hypotheses, log-probabilities of the next token, (B, W, V)) to values of that shape, by which
the continuations are ranked instead; -inf forbids one. Log-probabilities and scores of hypotheses
remain those of the model."""


def beam_search(
    decoder: Decoder,
    beams: Beams,
    *,
    waiting: Waiting | None = None,
    plan: Plan | None = None,
    rules: Sequence[Rule] = (),
    bonus: Callable[[], Tensor] | None = None,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Yield the number of each sentence of `beams`, as it is done, and its best hypotheses.

    plan: sentences wait, and start when others are done; by default all start at once. waiting:
    those that wait, if other searches take some of them. Rules see hypotheses of one length, and so
    allow no plan; where they allow nothing and there is no result yet, the end symbol is forced.
    bonus: what is added to the scores of the hypotheses that end now, (B, W), at most 0.

    A hypothesis is finished when its end symbol is among the W best continuations; it is forced at
    the maximum length. A sentence is done when its worst of `beams.nbest` finished scores is at
    least the log-probability of its best live hypothesis, divided by the length penalty at the
    maximum length: an upper bound of any later score. With `beams.lookahead` the bound is that of
    hypotheses that end within so many more tokens. A beam of one is done at the first end symbol.
    Raises FloatingPointError for a NaN log-probability.
    """
    assert not (plan and rules)
    if waiting is None:
        waiting = Waiting(len(beams.max_lens))
    while True:
        _refill(decoder, beams, plan, waiting, at_once=bool(rules))
        if not len(beams):
            return
        live = _to_device(beams.log_probs, decoder.device)
        continuations = decoder.step(_to_device(beams.newest, decoder.device))
        if rules:
            columns = _ruled(continuations, beams, live, rules)
        else:
            best = continuations.best(live, beams.num_candidates, beams.eos_id, beams.must_end)
            columns = [best[0], *best]
        if bonus:
            columns.append(bonus())
        ranks, totals, origins, tokens, *extra = _to_host(columns)
        if np.isnan(ranks).any():
            raise FloatingPointError(NAN_MESSAGE)
        origins, done = beams.choose(
            ranks, totals, origins.astype(np.int64), tokens.astype(np.int64), *extra
        )
        if beams.width > 1:
            decoder.select(_to_device(origins, decoder.device))
        yield from done


def _refill(
    decoder: Decoder, beams: Beams, plan: Plan | None, waiting: Waiting, *, at_once: bool
) -> None:
    """Drop finished sentences and start waiting ones, if that is worth it.

    at_once: drop them in any case.
    """
    free = beams.is_free
    used = beams.sentences[~free].tolist()
    following = waiting.first  # read once: others may take it
    count = waiting.count - following
    if plan and count > 0:
        count = plan.room(used, following)
        if used and count < REFILL * (count + len(used)):
            count = 0
    at_once = at_once or decoder.device.type == "cpu"
    if free.any() and (
        count > 0 or at_once or not used or free.mean() >= SHRINK or beams.is_expired.any()
    ):
        places = np.flatnonzero(~free)
        beams.keep(places)
        decoder.keep(places.tolist())
    if numbers := waiting.take(count):
        beams.start(numbers)
        decoder.start(numbers)


def _ruled(
    continuations: Continuations, beams: Beams, live: Tensor, rules: Sequence[Rule]
) -> list[Tensor]:
    """Return the best continuations that the rules allow, ranked by them.

    Ranks, log-probabilities, origins and tokens, (B, 2W) each.
    """
    device, log_probs = live.device, continuations.all()
    nowhere = only(beams.eos_id, log_probs)
    values = torch.where(_to_device(beams.must_end, device)[:, None, None], nowhere, log_probs)
    tokens = _to_device(beams.tokens[:, :, -int(beams.lengths.max()) :], device)
    hypotheses = Live(beams.sentences.tolist(), tokens, live)
    values = reduce(lambda values, rule: rule(hypotheses, values), rules, values)
    # Nothing may be allowed: end rather than have no result.
    possible = (live + values.amax(dim=-1)).amax(dim=-1) > -torch.inf
    possible |= _to_device(beams.has_result, device)
    values = torch.where(possible[:, None, None], values, nowhere)
    ranks, origins, chosen = best_of(values, live, beams.num_candidates)
    own = torch.arange(len(beams), device=device)[:, None]
    totals = live.gather(1, origins) + log_probs[own, origins, chosen]
    # A rule may hide what is not a number.
    ranks = ranks.masked_fill(log_probs.isnan().any(dim=-1).any(dim=-1)[:, None], torch.nan)
    return [ranks, totals, origins, chosen]


def _to_device(x: NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(x)).to(device, non_blocking=True)


def _to_host(columns: Sequence[Tensor]) -> list[NDArray[Any]]:
    """Copy tensors, (B, ...), to main memory: where the search waits for what a GPU has found.

    In single precision, which holds ids up to 2^24 exactly.
    """
    joined = torch.cat([each.float() for each in columns], dim=1).cpu().numpy()
    return np.split(joined, np.cumsum([each.shape[1] for each in columns])[:-1], axis=1)
