"""Rules of a search: minimum length, forced prefix, n-gram blocking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from seq2seq.decoding.search import Live, Rule
from seq2seq.machine.devices import to_device


@dataclass(frozen=True)
class MinLength:
    """Forbids the end symbol before a hypothesis has `length` other tokens."""

    length: int
    eos_id: int

    def __call__(self, live: Live, values: Tensor) -> Tensor:
        """Return the values with that of the end symbol at -inf."""
        if live.length > self.length:
            return values
        values = values.clone()
        values[:, :, self.eos_id] = -torch.inf
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
        position = live.length - 1
        forced = [
            (row, self.prefixes[sentence][position])
            for row, sentence in enumerate(live.sentences.tolist())
            if position < len(self.prefixes[sentence])
        ]
        if not forced:
            return free_values
        rows, tokens = to_device(np.array(forced), values.device).unbind(1)
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
        if live.length < self.n:
            return values
        # (B, W, positions, n)
        ngrams = np.lib.stride_tricks.sliding_window_view(live.tokens, self.n, axis=-1)
        newest = live.tokens[:, :, None, live.length - self.n + 1 :]
        row, column, position = (ngrams[..., :-1] == newest).all(axis=-1).nonzero()
        repeated = np.stack([row, column, ngrams[row, column, position, -1]])
        values = values.clone()
        values[to_device(repeated, values.device).unbind()] = -torch.inf
        return values
