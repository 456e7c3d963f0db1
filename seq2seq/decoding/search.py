"""Beam search over any model with a `step` function; greedy search is a beam of one.

B is the number of sentences in the search, W the beam width, V the vocabulary size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seq2seq.decoding.beams import Beams, Hypothesis
from seq2seq.decoding.continuations import Best, highest

NAN_MESSAGE = "a log-probability is not a number"
REFILL = 1 / 8
"""Share of free places with which waiting sentences start. With more, places are empty for longer;
with fewer, the encoder has too little to do at once."""
SHRINK = 1 / 4
"""Share of free places with which they are dropped, when nothing waits."""


class SearchState(Protocol):
    """A model's state for W hypotheses of each of B sentences."""

    def select(self, origins: Tensor) -> None:
        """Continue in each sentence with its hypotheses `origins`, (B, W)."""

    def keep(self, sentences: Sequence[int]) -> None:
        """Keep only these sentences, in this order; some may be repeated."""


State = TypeVar("State", bound=SearchState)


class Continuations(Protocol):
    """What may follow each hypothesis."""

    def all(self) -> Tensor:
        """Return the log-probabilities of all tokens, (B*W, V)."""

    def best(self, count: int, eos_id: int) -> Best:
        """Return the best continuations, and the log-probability of the end symbol."""


class Decoder(Protocol[State]):
    """What the search needs of a model."""

    device: torch.device

    def start(self, numbers: Sequence[int]) -> State:
        """Return the state of a search for these sentences."""

    def replace(self, state: State, places: Sequence[int], numbers: Sequence[int]) -> None:
        """Start these sentences in the places of others."""

    def step(self, tokens: Tensor, state: State) -> Continuations:
        """Feed the newest token of each hypothesis, (B, W)."""


@dataclass(frozen=True)
class Plan:
    """How many sentences are searched at the same time."""

    sizes: Sequence[int]
    """Memory that each sentence takes, in any unit, the largest first."""
    capacity: int
    """Memory for all of them."""
    most: int
    """Maximum number of sentences."""

    def places(self, number: int) -> int:
        """Return how many sentences as large as this one fit beside each other, at least 1."""
        return max(1, min(self.most, self.capacity // max(1, self.sizes[number])))


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
    decoder: Decoder[State],
    beams: Beams,
    *,
    plan: Plan | None = None,
    rules: Sequence[Rule] = (),
    bonus: Callable[[State], Tensor] | None = None,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Yield the number of each sentence of `beams`, as it is done, and its best hypotheses.

    plan: sentences wait and start in the places of those that are done, in their order; by default
    all start at once. Rules see hypotheses of one length, and so allow no plan; where they allow
    nothing and there is no result yet, the end symbol is forced. bonus: (state) to what is added to
    the scores of the hypotheses that end now, (B, W), at most 0.

    A hypothesis is finished when its end symbol is among the W best continuations; it is forced at
    the maximum length. A sentence is done when its worst of `beams.nbest` finished scores is at
    least the log-probability of its best live hypothesis, divided by the length penalty at the
    maximum length: an upper bound of any later score. With `beams.lookahead` the bound is that of
    hypotheses that end within so many more tokens. A beam of one is done at the first end symbol.
    Raises FloatingPointError for a NaN log-probability.
    """
    assert not (plan and rules)
    waiting = deque(range(len(beams.max_lens)))
    if not waiting:
        return
    first = [
        waiting.popleft()
        for _ in range(min(len(waiting), plan.places(0) if plan else len(waiting)))
    ]
    state = decoder.start(first)
    beams.grow(len(first))
    beams.start(range(len(first)), first)
    while True:
        continuations = decoder.step(_to_device(beams.newest, decoder.device), state)
        rank = _ruled if rules else _ranked
        columns = rank(continuations, beams, decoder.device, rules)
        if bonus:
            columns.append(bonus(state))
        ranks, totals, origins, chosen, *extra = _to_host(columns)
        if np.isnan(ranks).any():
            raise FloatingPointError(NAN_MESSAGE)
        origins, done = beams.choose(
            ranks, totals, origins.astype(np.int64), chosen.astype(np.int64), *extra
        )
        yield from done
        if beams.width > 1:
            state.select(_to_device(origins, decoder.device))
        if not (beams.is_free.any() or waiting):
            continue
        if plan and waiting:
            _refill(decoder, state, beams, plan, waiting)
            continue
        free = beams.is_free
        if free.all():
            return
        # Rules see only unfinished sentences.
        if free.any() and (rules or free.mean() >= SHRINK):
            places = np.flatnonzero(~free)
            beams.keep(places)
            state.keep(places.tolist())


def _refill(
    decoder: Decoder[State], state: State, beams: Beams, plan: Plan, waiting: deque[int]
) -> None:
    """Start waiting sentences in free places, and in new ones as the sentences get smaller."""
    free = np.flatnonzero(beams.is_free).tolist()
    used = beams.sentences[~beams.is_free].tolist()
    largest = min([*used, waiting[0]])
    room = plan.places(largest)
    count = min(room - len(used), len(waiting))
    if used and count < REFILL * room:
        return
    missing = count - len(free)
    if missing > 0:
        if missing >= REFILL * len(beams):
            state.keep([*range(len(beams)), *[0] * missing])
            free += range(len(beams), len(beams) + missing)
            beams.grow(missing)
        else:
            count = len(free)
    if not count:
        return
    numbers = [waiting.popleft() for _ in range(count)]
    decoder.replace(state, free[:count], numbers)
    beams.start(free[:count], numbers)


def _ranked(
    continuations: Continuations, beams: Beams, device: torch.device, _: Sequence[Rule]
) -> list[Tensor]:
    """Return ranks, log-probabilities, origins and tokens of the best continuations, (B, 2W)."""
    size, width = len(beams), beams.width
    best = continuations.best(1 if width == 1 else 2 * width, beams.eos_id)
    values, ids = best.log_probs.view(size, width, -1), best.ids.view(size, width, -1)
    if beams.must_end.any():
        must_end = _to_device(beams.must_end, device)[:, None, None]
        only = torch.full_like(values, -torch.inf)
        only[:, :, 0] = best.ends.view(size, width)
        values = torch.where(must_end, only, values)
        ids = ids.masked_fill(must_end, beams.eos_id)
    return _of_sentences(values, ids, _to_device(beams.log_probs, device))


def _of_sentences(values: Tensor, ids: Tensor, live: Tensor) -> list[Tensor]:
    """Return the best 2W of the continuations, (B, W, count), of each sentence's hypotheses."""
    width, count = values.shape[1:]
    ranks = (live[:, :, None] + values).flatten(1)
    if width == 1:
        return [ranks, ranks, torch.zeros_like(ids[:, 0]), ids[:, 0]]
    ranks, places = ranks.topk(min(2 * width, width * count), dim=-1)
    origins = places.div(count, rounding_mode="floor")
    return [ranks, ranks, origins, ids.flatten(1).gather(1, places)]


def _ruled(
    continuations: Continuations, beams: Beams, device: torch.device, rules: Sequence[Rule]
) -> list[Tensor]:
    """Return the same of the continuations that the rules allow, ranked by them."""
    size, width = len(beams), beams.width
    live = _to_device(beams.log_probs, device)
    log_probs = continuations.all().view(size, width, -1)
    nowhere = _only(beams.eos_id, log_probs)
    values = torch.where(_to_device(beams.must_end, device)[:, None, None], nowhere, log_probs)
    tokens = _to_device(beams.tokens[:, :, -int(beams.lengths.max()) :], device)
    hypotheses = Live(beams.sentences.tolist(), tokens, live)
    values = reduce(lambda values, rule: rule(hypotheses, values), rules, values)
    # Nothing may be allowed: end rather than have no result.
    possible = (live + values.amax(dim=-1)).amax(dim=-1) > -torch.inf
    possible |= _to_device(beams.has_result, device)
    values = torch.where(possible[:, None, None], values, nowhere)
    found = highest(values, 1 if width == 1 else min(2 * width, values.shape[-1]))
    ranks, _, origins, chosen = _of_sentences(*found, live)
    own = torch.arange(size, device=device)[:, None]
    totals = live.gather(1, origins) + log_probs[own, origins, chosen]
    # A rule may hide what is not a number.
    ranks = ranks.masked_fill(log_probs.isnan().any(dim=-1).any(dim=-1)[:, None], torch.nan)
    return [ranks, totals, origins, chosen]


def _only(token: int, values: Tensor) -> Tensor:
    """Return the values with all but those of one token at -inf."""
    only = torch.full_like(values, -torch.inf)
    only[..., token] = values[..., token]
    return only


def _to_device(x: NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(x)).to(device)


def _to_host(columns: Sequence[Tensor]) -> list[NDArray[Any]]:
    """Copy tensors, (B, ...), to main memory: the only point at which the search waits for a GPU.

    In double precision, which holds log-probabilities and ids exactly.
    """
    joined = torch.cat([each.double() for each in columns], dim=1).cpu().numpy()
    return np.split(joined, np.cumsum([each.shape[1] for each in columns])[:-1], axis=1)
