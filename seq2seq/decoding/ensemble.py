"""Ensembles of models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seq2seq.data.packing import Packed
from seq2seq.model.cache import AttentionHeads, DecoderState
from seq2seq.model.transformer import Transformer


@dataclass
class EnsembleState:
    """The decoder state of each model, for the same hypotheses."""

    states: list[DecoderState]

    def select_rows(self, rows: Tensor) -> None:
        """Keep the hypotheses `rows`, in that order."""
        for state in self.states:
            state.select_rows(rows)

    @property
    def coverage(self) -> Tensor | None:
        """That of the first model."""
        return self.states[0].coverage

    @property
    def source_mask(self) -> Tensor:
        """(B, S), True for source tokens."""
        return self.states[0].source_mask

    def select_sentences(self, sentences: Tensor) -> None:
        """Keep the source side of only these sentences."""
        for state in self.states:
            state.select_sentences(sentences)


class Ensemble:
    """Models with one vocabulary; averages their probabilities of the next token."""

    def __init__(self, models: Sequence[Transformer]) -> None:
        self.models = list(models)

    @property
    def device(self) -> torch.device:
        """Device of the models."""
        return self.models[0].device

    def start(self, source: Packed, heads: AttentionHeads | None = None) -> EnsembleState:
        """Encode sources and return the initial state of a search.

        heads: of the first model, whose attention is summed in the state's `coverage`.
        """
        first = self.models[0].start(source, heads)
        return EnsembleState([first, *(model.start(source) for model in self.models[1:])])

    def step(self, tokens: Tensor, state: EnsembleState) -> Tensor:
        """Feed the newest token of every hypothesis, (R,); return log-probabilities, (R, V)."""
        log_probs = [
            model.step(tokens, own) for model, own in zip(self.models, state.states, strict=True)
        ]
        return _mean(log_probs)

    def score(
        self, tokens: Tensor, labels: Tensor, state: EnsembleState, *, need_weights: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Feed whole targets, (R, T); return the log-probability of each label, (R, T).

        If wanted, also the weights of the first model's cross-attention.
        """
        first, *others = [
            model.score(tokens, labels, own, need_weights=need_weights and not number)
            for number, (model, own) in enumerate(zip(self.models, state.states, strict=True))
        ]
        return _mean([first[0], *(log_probs for log_probs, _ in others)]), first[1]


def _mean(log_probs: list[Tensor]) -> Tensor:
    """Return the logarithm of the mean probability."""
    return torch.stack(log_probs).logsumexp(dim=0) - math.log(len(log_probs))
