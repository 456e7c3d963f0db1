"""Rules of a search: minimum length, forced prefix, n-gram blocking, diverse groups, sampling.

A rule maps the live hypotheses and the log-probabilities of their next token, (B, W, V), to values
by which the search ranks the continuations (`search.Rule`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seq2seq.decoding.sampling import Sampling, draw
from seq2seq.decoding.search import Live, Rule


@dataclass(frozen=True)
class MinLength:
    """Forbids the end symbol before a hypothesis has `length` other tokens."""

    length: int
    eos_id: int

    def __call__(self, live: Live, values: Tensor) -> Tensor:
        """Return the values with that of the end symbol at -inf."""
        if live.tokens.shape[-1] > self.length:
            return values
        values = values.clone()
        values[..., self.eos_id] = -torch.inf
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
        place = live.tokens.shape[-1] - 1
        forced = [
            (row, self.prefixes[sentence][place])
            for row, sentence in enumerate(live.sentences)
            if place < len(self.prefixes[sentence])
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
        tokens = live.tokens[:, :, 1:]
        if tokens.shape[-1] < self.n:
            return values
        ngrams = tokens.unfold(-1, self.n, 1)  # (B, W, positions, n)
        newest = tokens[:, :, None, tokens.shape[-1] - self.n + 1 :]
        repeats = (ngrams[..., :-1] == newest).all(dim=-1)
        row, column, position = repeats.nonzero(as_tuple=True)
        values = values.clone()
        values[row, column, ngrams[row, column, position, -1]] = -torch.inf
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
                best, places = ranks.topk(beam)
                used += torch.bincount(places[best.isfinite()] % vocab_size, minlength=vocab_size)
        return values


@dataclass(frozen=True)
class Draw:
    """Leaves one token to each hypothesis of a beam of one, drawn at random.

    Every sentence has its own seeds, so that its draws do not depend on its batch.
    """

    sampling: Sampling
    seeds: Sequence[Sequence[int]]
    """Of each sentence."""

    def __call__(self, live: Live, values: Tensor) -> Tensor:
        """Return the values with all but one drawn token of each row at -inf."""
        length = live.tokens.shape[-1]
        seeds = [(*self.seeds[sentence], length) for sentence in live.sentences]
        tokens = draw(self.sampling.restrict(values[:, 0]), seeds)[:, None, None]
        drawn = torch.full_like(values, -torch.inf)
        return drawn.scatter_(2, tokens, values.gather(2, tokens))
