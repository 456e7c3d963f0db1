"""Greedy and beam search over any model with a `step` function.

B is the number of unfinished sentences, W the beam width, V the vocabulary size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
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
    """log_prob divided by the length penalty; higher is better."""


@dataclass(frozen=True)
class LengthPenalty:
    """Divisor of a hypothesis's log-probability; `length` includes the end symbol."""

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

    max_lens: (B,), maximum number of tokens of a hypothesis, including the end symbol. Raises
    FloatingPointError for a NaN log-probability.
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
            raise FloatingPointError(NAN_MESSAGE)
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
) -> list[Hypothesis]:
    """Return the best hypothesis of each sentence.

    max_lens: (B,), maximum number of tokens of a hypothesis, including the end symbol, which is
    forced there. A hypothesis is finished when its end symbol is among the W best continuations. A
    sentence is done when its best finished score is at least the log-probability of its best live
    hypothesis, divided by the penalty at the maximum length: an upper bound of any later score.
    Raises FloatingPointError for a NaN log-probability.
    """
    device = max_lens.device
    num_sentences = len(max_lens)
    sentences = list(range(num_sentences))
    tokens = torch.full((num_sentences, beam, 1), bos_id, device=device)
    live = torch.full((num_sentences, beam), -torch.inf, device=device)
    live[:, 0] = 0.0  # all rows of a sentence are equal before the first step
    results: dict[int, Hypothesis] = {}
    limits = max_lens.tolist()
    length = 0
    while sentences:
        length += 1
        log_probs = step(tokens[:, :, -1].flatten(), state)  # (B*W, V)
        vocab_size = log_probs.shape[-1]
        must_end = torch.tensor([limits[i] == length for i in sentences], device=device)
        if bool(must_end.any()):
            only_end = torch.full_like(log_probs, -torch.inf)
            only_end[:, eos_id] = log_probs[:, eos_id]
            log_probs = torch.where(must_end.repeat_interleave(beam)[:, None], only_end, log_probs)
        totals = live[:, :, None] + log_probs.view(len(sentences), beam, vocab_size)
        # At most W of 2W continuations end, so at least W remain.
        best, places = totals.flatten(1).topk(min(2 * beam, beam * vocab_size), dim=-1)
        origins, chosen = places // vocab_size, places % vocab_size  # (B, 2W)
        ends = (chosen == eos_id) & best.isfinite()
        for row, rank in ends[:, :beam].nonzero().tolist():
            total = float(best[row, rank])
            prefix = tokens[row, int(origins[row, rank]), 1:].tolist()
            found = Hypothesis(prefix, total, total / penalty(length))
            best_so_far = results.get(sentences[row])
            if best_so_far is None or found.score > best_so_far.score:
                results[sentences[row]] = found
        unfinished = best.masked_fill(chosen == eos_id, -torch.inf)
        live, ranks = unfinished.topk(beam, dim=-1)  # (B, W)
        origins, chosen = origins.gather(1, ranks), chosen.gather(1, ranks)
        highest, highest_live = torch.stack([best[:, 0], live[:, 0]]).tolist()
        if any(map(math.isnan, highest)):  # topk sorts NaN first
            raise FloatingPointError(NAN_MESSAGE)
        rest = [
            row
            for row, (sentence, total) in enumerate(zip(sentences, highest_live, strict=True))
            if not _is_done(results.get(sentence), total / penalty(limits[sentence]))
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
    return [results[i] for i in range(num_sentences)]


def _is_done(best: Hypothesis | None, best_possible: float) -> bool:
    return best_possible == -torch.inf or (best is not None and best.score >= best_possible)
