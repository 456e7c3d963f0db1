"""Beam search over any model with a `step` function, and its rules; greedy search is a beam of one.

B is the number of sentences in the search, W the beam width, V the vocabulary size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seq2seq.decoding.beams import Beams, Hypothesis
from seq2seq.machine.workers import Waiting

REFILL = 1 / 4
"""Share of free slots with which waiting sentences start. With more, slots are empty for longer;
with fewer, fewer sentences are encoded together."""
SHRINK = 1 / 4
"""Share of free slots with which a GPU drops them, when nothing waits: it has to copy the rest."""
BLOCK = 64
"""Number of tokens, about, of whose log-probabilities the maximum is found first."""

Best = tuple[Tensor, Tensor, Tensor]
"""The best continuations of each sentence, (B, count), the best first: their log-probabilities, NaN
before all others; the hypotheses that they continue; their new tokens."""


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

    def keep(self, slots: Sequence[int]) -> None:
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
    """The number of each of the B sentences, or `FREE`."""
    lengths: NDArray[Any]
    """(B,): the number of tokens of its hypotheses, with the start symbol; also the length of one
    that ends now."""
    tokens: NDArray[Any]
    """(B, W, L): those tokens, at the end of each row, after start symbols; in main memory."""
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
    those that wait, if other searches take some of them. rules: where they allow nothing and there
    is no result yet, the end symbol is forced. bonus: what is added to the scores of the hypotheses
    that end now, (B, W), at most 0.

    A hypothesis is finished when its end symbol is among the W best continuations; it is forced at
    the maximum length. A sentence is done when its worst of `beams.nbest` finished scores is at
    least the log-probability of its best live hypothesis, divided by the length penalty at the
    maximum length: an upper bound of any later score. With `beams.lookahead` the bound is that of
    hypotheses that end within so many more tokens. A beam of one is done at the first end symbol.
    Raises FloatingPointError for a NaN log-probability.
    """
    if waiting is None:
        waiting = Waiting(len(beams.max_lens) // beams.copies)
    while True:
        _refill(decoder, beams, plan, waiting)
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
            raise FloatingPointError("a log-probability is not a number")
        origins, done = beams.choose(
            ranks, totals, origins.astype(np.int64), tokens.astype(np.int64), *extra
        )
        if beams.width > 1:
            decoder.select(_to_device(origins, decoder.device))
        yield from done


def _refill(decoder: Decoder, beams: Beams, plan: Plan | None, waiting: Waiting) -> None:
    """Drop finished sentences and start waiting ones, if that is worth it."""
    free = beams.is_free
    used = np.unique(beams.sentences[~free] // beams.copies).tolist()
    following = waiting.first  # read once: others may take it
    count = waiting.count - following
    if plan and count > 0:
        count = plan.room(used, following)
        if used and count < REFILL * (count + len(used)):
            count = 0
    at_once = decoder.device.type == "cpu"
    if free.any() and (
        count > 0 or at_once or not used or free.mean() >= SHRINK or beams.is_expired.any()
    ):
        slots = np.flatnonzero(~free)
        beams.keep(slots)
        decoder.keep(slots.tolist())
    if taken := waiting.take(count):
        numbers = [beams.copies * number + i for number in taken for i in range(beams.copies)]
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
    tokens = beams.tokens[:, :, -int(beams.lengths.max()) :]
    hypotheses = Live(beams.sentences.tolist(), beams.lengths, tokens, live)
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


def best_of(log_probs: Tensor, live: Tensor, count: int) -> Best:
    """Return the best continuations by log-probabilities of tokens, (B, W, V), and hypotheses.

    They are all in the blocks of tokens with the highest maxima, so that only these are sorted.
    """
    size, width, vocab_size = log_probs.shape
    count = min(count, width * vocab_size)
    length = _block_size(vocab_size)
    blocks = log_probs.view(size, -1, length)  # (B, W * blocks, length)
    per_row = vocab_size // length
    if 4 * count > width * per_row:
        ranks, indices = (log_probs + live[:, :, None]).flatten(1).topk(count)
        return ranks, indices.div(vocab_size, rounding_mode="floor"), indices.remainder_(vocab_size)
    maxima = (blocks.amax(dim=-1).view(size, width, per_row) + live[:, :, None]).flatten(1)
    if count == 1:
        ranks, chosen = maxima.max(dim=-1, keepdim=True)
    else:
        ranks, chosen = maxima.topk(count)
    origins = chosen.div(per_row, rounding_mode="floor")
    inside = blocks.gather(1, chosen[:, :, None].expand(-1, -1, length))
    inside += live.gather(1, origins)[:, :, None]
    if count == 1:
        _, indices = inside.flatten(1).max(dim=-1, keepdim=True)
        return ranks, origins, chosen.remainder_(per_row).mul_(length).add_(indices)
    ranks, indices = inside.flatten(1).topk(count)
    numbers = indices.div(length, rounding_mode="floor")
    tokens = chosen.remainder_(per_row).gather(1, numbers)
    return ranks, origins.gather(1, numbers), tokens.mul_(length).add_(indices.remainder_(length))


def only(token: int, values: Tensor) -> Tensor:
    """Return the values with all but those of one token at -inf."""
    alone = torch.full_like(values, -torch.inf)
    alone[..., token] = values[..., token]
    return alone


@cache
def _block_size(vocab_size: int) -> int:
    """Return a divisor near `BLOCK`; 1 if there is none."""
    near = sorted(range(BLOCK // 2, 2 * BLOCK + 1), key=lambda each: abs(each - BLOCK))
    return next((each for each in near if vocab_size % each == 0), 1)


@dataclass(frozen=True)
class MinLength:
    """Forbids the end symbol before a hypothesis has `length` other tokens."""

    length: int
    eos_id: int

    def __call__(self, live: Live, values: Tensor) -> Tensor:
        """Return the values with that of the end symbol at -inf."""
        short = np.flatnonzero(live.lengths <= self.length).tolist()
        if not short:
            return values
        values = values.clone()
        values[short, :, self.eos_id] = -torch.inf
        return values


@dataclass(frozen=True)
class Prefix:
    """Makes the hypotheses of each sentence start with given tokens.

    Other rules apply after the prefix only: they may forbid what the prefix contains.
    """

    prefixes: Sequence[Sequence[int]]
    others: Sequence[Rule] = ()

    def __call__(self, live: Live, values: Tensor) -> Tensor:
        """Return the values of the other rules, or all but the prefix's next token at -inf."""
        free_values = values
        for rule in self.others:
            free_values = rule(live, free_values)
        forced = [
            (row, self.prefixes[sentence][length - 1])
            for row, (sentence, length) in enumerate(zip(live.sentences, live.lengths, strict=True))
            if length <= len(self.prefixes[sentence])
        ]
        if not forced:
            return free_values
        rows, tokens = torch.tensor(forced, device=values.device).unbind(1)
        only = torch.full_like(values, -torch.inf)
        only[rows, :, tokens] = values[rows, :, tokens]
        free = torch.ones(len(values), dtype=torch.bool, device=values.device)
        free[rows] = False
        return torch.where(free[:, None, None], free_values, only)


@dataclass(frozen=True)
class NoRepeatNgram:
    """Forbids tokens that would repeat an n-gram of the hypothesis (Paulus et al. 2017)."""

    n: int

    def __call__(self, live: Live, values: Tensor) -> Tensor:
        """Return the values with those of repeating tokens at -inf."""
        length = live.tokens.shape[-1]
        if length < self.n:
            return values
        # (B, W, positions, n)
        ngrams = np.lib.stride_tricks.sliding_window_view(live.tokens, self.n, axis=-1)
        newest = live.tokens[:, :, None, length - self.n + 1 :]
        row, column, position = (ngrams[..., :-1] == newest).all(axis=-1).nonzero()
        repeated = np.stack([row, column, ngrams[row, column, position, -1]])
        values = values.clone()
        values[_to_device(repeated, values.device).unbind()] = -torch.inf
        return values


@dataclass(frozen=True)
class DiverseGroups:
    """Lowers tokens that earlier groups choose at the same time (Vijayakumar et al. 2018).

    The groups of a sentence are consecutive sentences of the search. The penalty is `strength`
    times the number of hypotheses in earlier groups that choose a token (Hamming diversity); it
    affects the choice of this time only, as in algorithm 1, not the hypotheses' log-probabilities.
    """

    groups: int
    strength: float

    def __call__(self, live: Live, values: Tensor) -> Tensor:
        """Return the values less the penalties."""
        values = values.clone()
        device, beam, vocab_size = values.device, *values.shape[1:]
        members: dict[int, list[int]] = {}
        for row, sentence in enumerate(live.sentences):
            members.setdefault(sentence // self.groups, []).append(row)
        for rows in members.values():
            used = torch.zeros(vocab_size, device=device)
            for row in rows:
                values[row] -= self.strength * used
                ranks = (live.log_probs[row, :, None] + values[row]).flatten()
                best, indices = ranks.topk(beam)
                used.index_add_(0, indices % vocab_size, best.isfinite().to(used.dtype))
        return values
