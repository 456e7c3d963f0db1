"""Ensembles of models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seq2seq.data.packing import Packed
from seq2seq.model.cache import DecoderState
from seq2seq.model.transformer import Transformer


@dataclass
class EnsembleState:
    """The decoder state of each model, for the same hypotheses."""

    states: list[DecoderState]

    def select_rows(self, rows: Tensor) -> None:
        """Keep the hypotheses `rows`, in that order."""
        for state in self.states:
            state.select_rows(rows)

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

    def start(self, source: Packed, num_sentences: int) -> EnsembleState:
        """Encode sources, one per window, and return the initial state of a search."""
        return EnsembleState([model.start(source, num_sentences) for model in self.models])

    def step(self, tokens: Tensor, state: EnsembleState) -> Tensor:
        """Feed the newest token of every hypothesis, (R,); return log-probabilities, (R, V)."""
        log_probs = [
            model.step(tokens, own) for model, own in zip(self.models, state.states, strict=True)
        ]
        return torch.stack(log_probs).logsumexp(dim=0) - math.log(len(log_probs))
