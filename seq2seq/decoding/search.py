"""Beam search (Sutskever et al. 2014, section 3.2; Vaswani et al. 2017, section 6.1).

B is the number of unfinished sentences, W the beam width, V the vocabulary size. Greedy search is a
beam of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seq2seq.machine.devices import to_device


class Decoder(Protocol):
    """Incremental decoding of a batch by a model or an ensemble."""

    device: torch.device

    def step(self, tokens: Tensor) -> Tensor:
        """Feed the newest tokens, (B, W); return log-probabilities of the next, (B, W, V)."""

    def select(self, kept: NDArray[np.int64], beam_ids: NDArray[np.int64]) -> None:
        """Reorder the state: keep these hypotheses of some of the B sentences.

        kept: positions of the sentences among the B, (B',). beam_ids: hypotheses, (B', W).
        """


@dataclass(frozen=True)
class BeamState:
    """The unfinished hypotheses of a search."""

    sentences: NDArray[np.int64]
    """Indices of the sentences in the search, (B,)."""
    tokens: NDArray[np.int64]
    """Tokens from the start symbol on, (B, W, length), in main memory."""
    totals: Tensor
    """Log-probabilities, summed over the tokens, (B, W); -inf for unused places of a beam."""

    @property
    def length(self) -> int:
        """Number of tokens, including the start symbol."""
        return self.tokens.shape[2]


Rule = Callable[[BeamState, Tensor], Tensor]
"""Changes the values that rank the next tokens, (B, W, V), like a logits processor; -inf forbids a
token. The first rule receives log-probabilities. Unlike with a logits processor, scores of
hypotheses do not change."""


@dataclass(frozen=True)
class Finished:
    """A finished hypothesis."""

    tokens: list[int]
    """Token ids without start and end symbol."""
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
    penalty: Callable[[int], float],
    patience: float = 1.0,
    nbest: int = 1,
    rules: Sequence[Rule] = (),
) -> list[list[Finished]]:
    """Return the finished hypotheses of each sentence, the best first.

    A hypothesis is finished when its end symbol is among the W best continuations of its sentence.
    A sentence is done when `beam` times `patience` hypotheses are finished, or `nbest` if that is
    more (Kasai et al. 2022). Greedy search stops at the first finished hypothesis.

    max_lens: maximum number of tokens, (B,), including the end symbol. The end symbol is forced at
    this length. It is also forced if the rules forbid all tokens of a sentence that has no finished
    hypothesis. penalty: length penalty for a number of tokens, including the end symbol. Raises
    FloatingPointError if a log-probability is NaN.
    """
    enough = 1 if beam == 1 else max(nbest, math.floor(beam * patience + 0.5))
    limits, finished = np.array(max_lens), [list[Finished]() for _ in max_lens]
    sentences = np.arange(len(max_lens))
    tokens = np.full((len(sentences), beam, 1), bos_id)
    totals = np.full((len(sentences), beam), -np.inf, dtype=np.float32)
    totals[:, 0] = 0.0  # all hypotheses of a sentence are equal before the first step
    while len(sentences):
        state = BeamState(sentences, tokens, to_device(totals, decoder.device))
        log_probs = decoder.step(to_device(tokens[:, :, -1], decoder.device))
        force_eos = limits[sentences] == state.length
        none_finished = np.array([not finished[sentence] for sentence in sentences])
        values = _apply_rules(state, log_probs, rules, force_eos, none_finished, eos_id)
        best = best_continuations(state.totals, values, log_probs, 2 * beam)
        # The only wait for a GPU. Single precision represents ids up to 2^24 exactly.
        columns = torch.stack([column.float() for column in best])
        priorities, totals, beam_ids, next_tokens = columns.cpu().numpy()
        if np.isnan(priorities).any():
            raise FloatingPointError("a log-probability is NaN")
        beam_ids, next_tokens = beam_ids.astype(np.int64), next_tokens.astype(np.int64)
        ends = next_tokens == eos_id
        for row, rank in np.argwhere((ends & np.isfinite(priorities))[:, :beam]):
            path, total = tokens[row, beam_ids[row, rank], 1:], float(totals[row, rank])
            # The end symbol counts, and the start symbol does not.
            hypothesis = Finished(path.tolist(), total, total / penalty(state.length))
            finished[sentences[row]].append(hypothesis)
        # At most W of the 2W continuations end, so at least W go on.
        order = np.argsort(ends, axis=1, kind="stable")[:, :beam]
        totals = np.where(ends | (priorities == -np.inf), -np.inf, totals)
        totals, beam_ids, next_tokens = (
            np.take_along_axis(x, order, axis=1) for x in (totals, beam_ids, next_tokens)
        )
        counts = np.array([len(finished[sentence]) for sentence in sentences])
        rows = np.flatnonzero((counts < enough) & (totals.max(axis=1) > -np.inf))
        totals, beam_ids, next_tokens = totals[rows], beam_ids[rows], next_tokens[rows]
        tokens = np.take_along_axis(tokens[rows], beam_ids[:, :, None], axis=1)
        tokens = np.concatenate([tokens, next_tokens[:, :, None]], axis=2)
        sentences = sentences[rows]
        if len(rows):
            decoder.select(rows, beam_ids)
    return [sorted(hypotheses, key=lambda x: -x.score) for hypotheses in finished]


def _apply_rules(
    state: BeamState,
    log_probs: Tensor,
    rules: Sequence[Rule],
    force_eos: NDArray[np.bool_],
    none_finished: NDArray[np.bool_],
    eos_id: int,
) -> Tensor:
    """Return the values that rank the continuations, (B, W, V), with forbidden tokens at -inf."""
    values, device = log_probs, log_probs.device
    if force_eos.any():
        at_limit = to_device(force_eos, device)[:, None, None]
        values = torch.where(at_limit, only(eos_id, log_probs), values)
    if rules:
        values = reduce(lambda values, rule: rule(state, values), rules, values)
        possible = (state.totals + values.amax(dim=-1)).amax(dim=-1) > -torch.inf
        stuck = to_device(none_finished, device) & ~possible
        values = torch.where(stuck[:, None, None], only(eos_id, log_probs), values)
        # A rule may have replaced a NaN.
        values = values.masked_fill(log_probs.isnan().any(dim=-1, keepdim=True), torch.nan)
    return values


def only(token: int, values: Tensor) -> Tensor:
    """Return the values with all tokens but one at -inf."""
    masked = torch.full_like(values, -torch.inf)
    masked[..., token] = values[..., token]
    return masked


def best_continuations(
    totals: Tensor, values: Tensor, log_probs: Tensor, count: int
) -> list[Tensor]:
    """Return the `count` best continuations of each sentence, the best first; NaN sorts first.

    totals: log-probabilities of the hypotheses, (B, W). values, log_probs: ranking values and
    log-probabilities of the next token, (B, W, V). Returns four tensors, (B, count): totals plus
    values, totals plus log_probs, indices of the continued hypotheses, and next tokens.
    """
    size, width, vocab_size = values.shape
    per_beam = min(count, vocab_size)
    values, tokens = values.topk(per_beam, dim=-1)
    priorities, indices = (
        (totals[:, :, None] + values).flatten(1).topk(min(count, width * per_beam))
    )
    beam_ids, tokens = indices // per_beam, tokens.flatten(1).gather(1, indices)
    rows = torch.arange(size, device=totals.device)[:, None]
    totals = totals.gather(1, beam_ids) + log_probs[rows, beam_ids, tokens]
    return [priorities, totals, beam_ids, tokens]
