"""Models and the states of their sentences, as the search sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from seq2seq.decoding.continuations import Continuations
from seq2seq.decoding.query import Query
from seq2seq.model.cache import AttentionHeads, DecoderState

if TYPE_CHECKING:
    from seq2seq.decoding.engine import SearchEngine


class ModelDecoder:
    """The models and their states as the search sees them."""

    def __init__(
        self,
        engine: SearchEngine,
        queries: Sequence[Query],
        beam: int,
        copies: int,
        heads: AttentionHeads | None,
    ) -> None:
        """copies: of each query; all start at once if there are several. heads: for coverage."""
        self.engine, self.queries, self.device = engine, queries, engine.device
        self.beam, self.copies, self.heads = beam, copies, heads
        self._states: list[DecoderState] = []
        """One of each model."""

    def start(self, numbers: Sequence[int]) -> None:
        """Add sentences, by their numbers, after the others."""
        own = numbers[:: self.copies]
        sources = [self.queries[number // self.copies].source for number in own]
        states = self.engine.start(sources, self.beam, self.heads)
        if self.copies > 1:
            for state in states:
                state.keep([place for place in range(len(own)) for _ in range(self.copies)])
        if self._states:
            for state, new in zip(self._states, states, strict=True):
                state.extend(new)
        else:
            self._states = states

    def step(self, tokens: Tensor) -> Continuations:
        """Feed the newest token of each hypothesis, (B, W)."""
        return self.engine.step(tokens, self._states)

    def select(self, origins: Tensor) -> None:
        """Continue in each sentence with its hypotheses `origins`, (B, W)."""
        for state in self._states:
            state.select(origins)

    def keep(self, places: Sequence[int]) -> None:
        """Drop all sentences but these."""
        if not places:
            self._states = []
        for state in self._states:
            state.keep(places)

    def coverage_penalty(self, weight: float) -> Tensor:
        """Return the coverage penalty of hypotheses that end now, (B, W)."""
        state = self._states[0]
        assert state.coverage is not None
        lens = torch.from_numpy(state.source_lens).to(self.device)[:, None] - 1
        outside = torch.arange(state.coverage.shape[-1], device=self.device) >= lens
        return weight * coverage_of(state.coverage.masked_fill(outside[:, None], 1.0))


def coverage_of(attention: Tensor) -> Tensor:
    """Return the sum of log(min(attention, 1)) over source tokens, (..., S).

    The attention is summed over the target; the coverage penalty is this times its weight (Wu et
    al. 2016, equation 14).
    """
    return attention.clamp(1e-10, 1.0).log().sum(dim=-1)
