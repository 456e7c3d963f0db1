"""Greedy and beam search over any model: all they know of it is `step`.

N counts the sentences that are still being decoded, W the beam width, V the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import torch
from torch import Tensor


class SearchState(Protocol):
    """A model's memory of the hypotheses, W rows for each sentence, side by side."""

    def select_rows(self, rows: Tensor) -> None:
        """Keep the rows `rows`, in that order."""

    def select_sentences(self, sentences: Tensor) -> None:
        """Keep what is stored once a sentence for these sentences alone."""


NAN = "a log-probability is not a number"

State = TypeVar("State", bound=SearchState)
Step = Callable[[Tensor, State], Tensor]
"""(newest tokens, (N*W,); state) to the next token's log-probabilities, (N*W, V)."""


@dataclass(frozen=True)
class Hypothesis:
    """A finished translation: its tokens without the end symbol, and how probable it is."""

    tokens: list[int]
    log_prob: float
    """Sum over the tokens and the end symbol, in nats."""
    score: float
    """log_prob divided by the length penalty; higher is better."""


@dataclass(frozen=True)
class LengthPenalty:
    """What a hypothesis's log-probability is divided by; `length` counts the end symbol."""

    alpha: float
    form: Literal["wu", "power"] = "wu"

    def __call__(self, length: int) -> float:
        """wu: ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14); power: length^alpha."""
        base = (5 + length) / 6 if self.form == "wu" else length
        return float(base**self.alpha)


def greedy_search(
    step: Step[State],
    state: State,
    *,
    bos_id: int,
    eos_id: int,
    max_lens: Tensor,
    penalty: LengthPenalty,
) -> list[Hypothesis]:
    """Follow the most probable token; return one hypothesis for each sentence.

    max_lens: (N,), tokens that a hypothesis may have at most, its end symbol included. Raises
    FloatingPointError where a log-probability is NaN.
    """
    device = max_lens.device
    num_sentences = len(max_lens)
    sentences = torch.arange(num_sentences, device=device)
    tokens = torch.full((num_sentences, 1), bos_id, device=device)
    totals = torch.zeros(num_sentences, device=device)
    results: dict[int, Hypothesis] = {}
    length = 0
    while len(sentences):
        length += 1
        log_probs = step(tokens[:, -1], state)
        chosen = log_probs.argmax(dim=-1)
        chosen = torch.where(max_lens == length, torch.full_like(chosen, eos_id), chosen)
        totals = totals + log_probs.gather(1, chosen[:, None])[:, 0]
        ended = chosen == eos_id
        for row in ended.nonzero()[:, 0].tolist():
            total = float(totals[row])
            results[int(sentences[row])] = Hypothesis(
                tokens[row, 1:].tolist(), total, total / penalty(length)
            )
        tokens = torch.cat([tokens, chosen[:, None]], dim=1)
        any_ended, any_nan = torch.stack([ended.any(), totals.isnan().any()]).tolist()
        if any_nan:
            raise FloatingPointError(NAN)
        if any_ended:
            rest = (~ended).nonzero()[:, 0]
            sentences, tokens, totals, max_lens = (
                tensor[rest] for tensor in (sentences, tokens, totals, max_lens)
            )
            if len(rest):
                state.select_rows(rest)
                state.select_sentences(rest)
    return [results[i] for i in range(num_sentences)]


def beam_search(
    step: Step[State],
    state: State,
    *,
    beam: int,
    bos_id: int,
    eos_id: int,
    max_lens: Tensor,
    penalty: LengthPenalty,
    num_best: int = 1,
) -> list[list[Hypothesis]]:
    """Return the `num_best` best hypotheses of each sentence, the best first.

    max_lens: (N,), tokens that a hypothesis may have at most, its end symbol included; one that
    gets there is ended. A hypothesis is kept when its end symbol is among the W best
    continuations. A sentence is done when no live hypothesis can still beat its kept ones: its
    log-probability can only fall, so at best it ends with today's, at the longest length. Raises
    FloatingPointError where a log-probability is NaN.
    """
    device = max_lens.device
    num_sentences = len(max_lens)
    sentences = list(range(num_sentences))
    tokens = torch.full((num_sentences, beam, 1), bos_id, device=device)
    live = torch.full((num_sentences, beam), -torch.inf, device=device)
    live[:, 0] = 0.0  # the rows of a sentence are alike before the first step
    kept: list[list[Hypothesis]] = [[] for _ in range(num_sentences)]
    limits = max_lens.tolist()
    length = 0
    while sentences:
        length += 1
        log_probs = step(tokens[:, :, -1].flatten(), state)  # (N*W, V)
        vocab_size = log_probs.shape[-1]
        must_end = torch.tensor([limits[i] == length for i in sentences], device=device)
        if bool(must_end.any()):
            only_end = torch.full_like(log_probs, -torch.inf)
            only_end[:, eos_id] = log_probs[:, eos_id]
            log_probs = torch.where(must_end.repeat_interleave(beam)[:, None], only_end, log_probs)
        totals = live[:, :, None] + log_probs.view(len(sentences), beam, vocab_size)
        # Of 2W continuations at most W end, so W are left to go on.
        best, places = totals.flatten(1).topk(min(2 * beam, beam * vocab_size), dim=-1)
        origins, chosen = places // vocab_size, places % vocab_size  # (N, 2W)
        ends = (chosen == eos_id) & best.isfinite()
        for row, rank in ends[:, :beam].nonzero().tolist():
            total = float(best[row, rank])
            prefix = tokens[row, int(origins[row, rank]), 1:].tolist()
            _keep(
                kept[sentences[row]], Hypothesis(prefix, total, total / penalty(length)), num_best
            )
        going_on = best.masked_fill(chosen == eos_id, -torch.inf)
        live, ranks = going_on.topk(beam, dim=-1)  # (N, W)
        origins, chosen = origins.gather(1, ranks), chosen.gather(1, ranks)
        highest, highest_live = torch.stack([best[:, 0], live[:, 0]]).tolist()
        if any(map(math.isnan, highest)):  # which topk takes for the largest number
            raise FloatingPointError(NAN)
        rest = [
            row
            for row, (sentence, total) in enumerate(zip(sentences, highest_live, strict=True))
            if not _is_done(kept[sentence], total / penalty(limits[sentence]), num_best)
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
    return kept


def _keep(kept: list[Hypothesis], hypothesis: Hypothesis, num_best: int) -> None:
    kept.append(hypothesis)
    kept.sort(key=lambda h: -h.score)
    del kept[num_best:]


def _is_done(kept: list[Hypothesis], best_possible: float, num_best: int) -> bool:
    if best_possible == -torch.inf:
        return True
    return len(kept) == num_best and kept[-1].score >= best_possible
