"""Beam search (Sutskever et al. 2014, section 3.2; Vaswani et al. 2017, section 6.1).

B is the number of unfinished sentences, W the beam width, V the vocabulary size. Greedy search is a
beam of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seq2seq.decoding.hypothesis import LengthPenalty
from seq2seq.machine.devices import to_device


class Decoder(Protocol):
    """A model and the state of its sentences."""

    device: torch.device

    def step(self, tokens: Tensor) -> Tensor:
        """Feed the newest tokens, (B, W); return log-probabilities of the next, (B, W, V)."""

    def select(self, sentences: NDArray[np.int64], origins: NDArray[np.int64]) -> None:
        """Continue with some of the B sentences, and with their hypotheses `origins`, (B', W)."""


@dataclass(frozen=True)
class Live:
    """The unfinished hypotheses of a search."""

    sentences: NDArray[np.int64]
    """(B,): the number of each sentence."""
    tokens: NDArray[np.int64]
    """(B, W, length), from the start symbol on; in main memory."""
    log_probs: Tensor
    """(B, W): sums over the tokens; -inf for rows without a hypothesis."""

    @property
    def length(self) -> int:
        """Number of tokens with the start symbol; also of a hypothesis that ends now."""
        return self.tokens.shape[2]


Rule = Callable[[Live, Tensor], Tensor]
"""Maps the log-probabilities of the next token, (B, W, V), to values by which continuations are
ranked instead; -inf forbids one. Log-probabilities and scores of hypotheses stay the model's."""


@dataclass(frozen=True)
class Finished:
    """A finished hypothesis."""

    tokens: list[int]
    """Without start and end symbol."""
    log_prob: float
    """Sum over the tokens and the end symbol, in nats."""
    score: float
    """log_prob divided by the length penalty."""


def beam_search(
    decoder: Decoder,
    max_lens: Sequence[int],
    *,
    beam: int,
    bos_id: int,
    eos_id: int,
    penalty: LengthPenalty,
    patience: float = 1.0,
    nbest: int = 1,
    rules: Sequence[Rule] = (),
) -> list[list[Finished]]:
    """Return the finished hypotheses of each sentence, the best first.

    A hypothesis is finished when its end symbol is among the W best continuations of its sentence.
    A sentence is done when `beam` times `patience` hypotheses are finished, or `nbest` if that is
    more (Kasai et al. 2022); greedy search at the first one.

    max_lens: (B,), maximum number of tokens with the end symbol, which is forced there; also where
    the rules allow nothing and no hypothesis is finished yet. Raises FloatingPointError for a NaN
    log-probability.
    """
    enough = 1 if beam == 1 else max(nbest, math.floor(beam * patience + 0.5))
    limits, finished = np.array(max_lens), [list[Finished]() for _ in max_lens]
    sentences = np.arange(len(max_lens))
    tokens = np.full((len(sentences), beam, 1), bos_id)
    totals = np.full((len(sentences), beam), -np.inf, dtype=np.float32)
    totals[:, 0] = 0.0  # all rows of a sentence are equal before the first step
    while len(sentences):
        live = Live(sentences, tokens, to_device(totals, decoder.device))
        log_probs = decoder.step(to_device(tokens[:, :, -1], decoder.device))
        must_end = limits[sentences] == live.length
        has_none = np.array([not finished[number] for number in sentences])
        values = _allowed(live, log_probs, rules, must_end, has_none, eos_id)
        found = best_continuations(live.log_probs, values, log_probs, 2 * beam)
        ranks, totals, origins, chosen = _to_host(found)
        if np.isnan(ranks).any():
            raise FloatingPointError("a log-probability is not a number")
        origins, chosen = origins.astype(np.int64), chosen.astype(np.int64)
        ends = chosen == eos_id
        for row, rank in np.argwhere((ends & np.isfinite(ranks))[:, :beam]):
            origin, total = origins[row, rank], float(totals[row, rank])
            new = Finished(tokens[row, origin, 1:].tolist(), total, total / penalty(live.length))
            finished[sentences[row]].append(new)
        # At most W of the 2W continuations end, so at least W go on.
        order = np.argsort(ends, axis=1, kind="stable")[:, :beam]
        totals = np.where(ends | (ranks == -np.inf), -np.inf, totals)
        columns = totals, origins, chosen
        totals, origins, chosen = (np.take_along_axis(x, order, axis=1) for x in columns)
        counts = np.array([len(finished[number]) for number in sentences])
        rest = np.flatnonzero((counts < enough) & (totals.max(axis=1) > -np.inf))
        totals, origins, chosen = totals[rest], origins[rest], chosen[rest]
        tokens = np.take_along_axis(tokens[rest], origins[:, :, None], axis=1)
        tokens = np.concatenate([tokens, chosen[:, :, None]], axis=2)
        sentences = sentences[rest]
        if len(rest):
            decoder.select(rest, origins)
    return [sorted(each, key=lambda hypothesis: -hypothesis.score) for each in finished]


def _allowed(
    live: Live,
    log_probs: Tensor,
    rules: Sequence[Rule],
    must_end: NDArray[np.bool_],
    has_none: NDArray[np.bool_],
    eos_id: int,
) -> Tensor:
    """Return the values of the continuations that are allowed; -inf for the others, (B, W, V)."""
    values, device = log_probs, log_probs.device
    if must_end.any():
        ending = to_device(must_end, device)[:, None, None]
        values = torch.where(ending, only(eos_id, log_probs), values)
    if rules:
        values = reduce(lambda values, rule: rule(live, values), rules, values)
        possible = (live.log_probs + values.amax(dim=-1)).amax(dim=-1) > -torch.inf
        stuck = to_device(has_none, device) & ~possible
        values = torch.where(stuck[:, None, None], only(eos_id, log_probs), values)
        # A rule may hide what is not a number.
        values = values.masked_fill(log_probs.isnan().any(dim=-1, keepdim=True), torch.nan)
    return values


def only(token: int, values: Tensor) -> Tensor:
    """Return the values with all but those of one token at -inf."""
    alone = torch.full_like(values, -torch.inf)
    alone[..., token] = values[..., token]
    return alone


def best_continuations(live: Tensor, values: Tensor, log_probs: Tensor, count: int) -> list[Tensor]:
    """Return the best continuations of each sentence, the best first; NaN before all others.

    live: log-probabilities of the hypotheses, (B, W). values, log_probs: (B, W, V). Returns ranks,
    log-probabilities, the hypotheses that are continued, and the new tokens, (B, count) each.
    """
    size, width, vocab_size = values.shape
    per_row = min(count, vocab_size)
    values, tokens = values.topk(per_row, dim=-1)
    ranks, places = (live[:, :, None] + values).flatten(1).topk(min(count, width * per_row))
    origins, tokens = places // per_row, tokens.flatten(1).gather(1, places)
    rows = torch.arange(size, device=live.device)[:, None]
    totals = live.gather(1, origins) + log_probs[rows, origins, tokens]
    return [ranks, totals, origins, tokens]


def _to_host(columns: Sequence[Tensor]) -> list[NDArray[Any]]:
    """Copy tensors, (B, ...), to main memory: where the host waits for a GPU, once a step.

    In single precision, which holds ids up to 2^24 exactly.
    """
    return list(torch.stack([each.float() for each in columns]).cpu().numpy())
