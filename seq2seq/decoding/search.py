"""Beam search over any model with a `step` function; greedy search is a beam of one.

B is the number of unfinished sentences, W the beam width, V the vocabulary size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal, Protocol, TypeVar

import torch
from torch import Tensor


class SearchState(Protocol):
    """A model's state for W consecutive rows (hypotheses) per sentence."""

    def select_rows(self, rows: Tensor) -> None:
        """Keep only `rows`, in that order."""

    def select_sentences(self, sentences: Tensor) -> None:
        """Keep what is stored per sentence for only these sentences."""


NAN_MESSAGE = "a log-probability is not a number"

State = TypeVar("State", bound=SearchState)
Step = Callable[[Tensor, State], Tensor]
"""(newest tokens, (B*W,); state) to the next token's log-probabilities, (B*W, V)."""


@dataclass(frozen=True)
class Hypothesis:
    """A finished translation: its tokens without the end symbol, and its score."""

    tokens: list[int]
    log_prob: float
    """Sum over the tokens and the end symbol, in nats."""
    score: float
    """log_prob divided by the length penalty, plus the bonus if any; higher is better."""


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


@dataclass(frozen=True)
class LengthPenalty:
    """Divisor of a hypothesis's log-probability; `length` includes the end symbol."""

    alpha: float
    form: Literal["wu", "power"] = "wu"

    def __call__(self, length: int) -> float:
        """wu: ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14); power: length^alpha."""
        base = (5 + length) / 6 if self.form == "wu" else length
        return float(base**self.alpha)


def beam_search(
    step: Step[State],
    state: State,
    *,
    beam: int,
    bos_id: int,
    eos_id: int,
    max_lens: Tensor,
    penalty: LengthPenalty,
    nbest: int = 1,
    rules: Sequence[Rule] = (),
    bonus: Callable[[int], float] | None = None,
    text_of: Callable[[list[int]], object] = tuple,
) -> list[list[Hypothesis]]:
    """Return the `nbest` best hypotheses of each sentence, or fewer, the best first.

    max_lens: (B,), maximum number of tokens of a hypothesis, including the end symbol, which is
    forced there. Where the rules allow nothing and there is no result yet, it is forced too. bonus:
    (row) to what is added to the score of a hypothesis that ends there, at most 0. text_of: of
    hypotheses with the same text only the one with the highest score is a result. A hypothesis is
    finished when its end symbol is among the W best continuations. A sentence is done when its
    worst of `nbest` finished scores is at least the log-probability of its best live hypothesis,
    divided by the penalty at the maximum length: an upper bound of any later score; a beam of one
    is done at the first end symbol. Raises FloatingPointError for a NaN log-probability.
    """
    device = max_lens.device
    limits = max_lens.tolist()
    lowest = [penalty(limit) for limit in limits]  # of any score of a live hypothesis
    sentences = list(range(len(limits)))
    results: list[list[Hypothesis]] = [[] for _ in limits]
    tokens = torch.full((len(limits), beam, 1), bos_id, device=device)
    live = torch.full((len(limits), beam), -torch.inf, device=device)
    live[:, 0] = 0.0  # all rows of a sentence are equal before the first step
    while sentences:
        length = tokens.shape[-1]
        log_probs = step(tokens[:, :, -1].flatten(), state).view(len(sentences), beam, -1)
        values = log_probs
        must_end = torch.tensor([limits[i] == length for i in sentences], device=device)
        if bool(must_end.any()):
            values = torch.where(must_end[:, None, None], _only(eos_id, values), values)
        values = _ruled(rules, Live(sentences, tokens, live), values)
        if rules:  # nothing may be allowed: end rather than have no result
            possible = (live + values.amax(dim=-1)).amax(dim=-1) > -torch.inf
            possible |= torch.tensor([bool(results[i]) for i in sentences], device=device)
            values = torch.where(possible[:, None, None], values, _only(eos_id, log_probs))
        # At most W of 2W continuations end, so at least W remain.
        count = 1 if beam == 1 else min(2 * beam, values.shape[-1])
        values, ids = _highest(values, count)  # (B, W, 2W)
        ranks, places = _highest(
            (live[:, :, None] + values).flatten(1), min(2 * beam, beam * count)
        )
        origins, chosen = places // count, ids.flatten(1).gather(1, places)  # (B, 2W)
        totals = ranks
        if rules:
            own = torch.arange(len(sentences), device=device)[:, None]
            totals = live.gather(1, origins) + log_probs[own, origins, chosen]
            totals = totals.masked_fill(ranks == -torch.inf, -torch.inf)
        if bool(ranks[:, 0].isnan().any()):  # the highest value, if there is one
            raise FloatingPointError(NAN_MESSAGE)
        ended = chosen == eos_id
        for row, rank in (ended & ranks.isfinite())[:, :beam].nonzero().tolist():
            origin, total = int(origins[row, rank]), float(totals[row, rank])
            extra = bonus(row * beam + origin) if bonus else 0.0
            path = tokens[row, origin, 1:].tolist()
            score = total / penalty(length) + extra
            _insert(results[sentences[row]], Hypothesis(path, total, score), nbest, text_of)
        ranks, order = _highest(ranks.masked_fill(ended, -torch.inf), beam)  # (B, W)
        origins, chosen = origins.gather(1, order), chosen.gather(1, order)
        live = totals.gather(1, order).masked_fill(ranks == -torch.inf, -torch.inf)
        rest = [
            row
            for row, highest in enumerate(live.amax(dim=1).tolist())
            if not _is_done(results[sentences[row]], nbest, beam, highest / lowest[sentences[row]])
        ]
        if not rest:
            break
        remaining = torch.tensor(rest, device=device)
        rows = (remaining[:, None] * beam + origins[remaining]).flatten()
        tokens = tokens.flatten(0, 1)[rows].view(len(rest), beam, -1)
        tokens = torch.cat([tokens, chosen[remaining][:, :, None]], dim=-1)
        live = live[remaining]
        if not torch.equal(rows, torch.arange(len(sentences) * beam, device=device)):
            state.select_rows(rows)
        if len(rest) < len(sentences):
            state.select_sentences(remaining)
            sentences = [sentences[row] for row in rest]
    return results


def _ruled(rules: Sequence[Rule], live: Live, log_probs: Tensor) -> Tensor:
    if rules and bool(log_probs.isnan().any()):  # a rule might hide it
        raise FloatingPointError(NAN_MESSAGE)
    return reduce(lambda values, rule: rule(live, values), rules, log_probs)


def _only(token: int, values: Tensor) -> Tensor:
    """Return the values with all but those of one token at -inf."""
    only = torch.full_like(values, -torch.inf)
    only[..., token] = values[..., token]
    return only


def _highest(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the highest values along the last axis, NaN first, and their places."""
    return x.max(dim=-1, keepdim=True) if count == 1 else x.topk(count, dim=-1)


def _insert(
    found: list[Hypothesis],
    new: Hypothesis,
    nbest: int,
    text_of: Callable[[list[int]], object],
) -> None:
    """Insert a hypothesis into the best ones, which have different texts."""
    if nbest > 1:
        text = text_of(new.tokens)
        same = next((i for i, old in enumerate(found) if text_of(old.tokens) == text), None)
        if same is not None and found[same].score >= new.score:
            return
        if same is not None:
            del found[same]
    found.append(new)
    found.sort(key=lambda hypothesis: -hypothesis.score)
    del found[nbest:]


def _is_done(found: list[Hypothesis], nbest: int, beam: int, best_possible: float) -> bool:
    if best_possible == -math.inf or (beam == 1 and found):
        return True
    return len(found) == nbest and found[-1].score >= best_possible
