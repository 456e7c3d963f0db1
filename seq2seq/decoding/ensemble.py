"""Several models that translate together."""

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
    """What each of the models remembers of the hypotheses, which are the same for all."""

    states: list[DecoderState]

    def select_rows(self, rows: Tensor) -> None:
        """Reorder the hypotheses."""
        for state in self.states:
            state.select_rows(rows)

    def select_sentences(self, sentences: Tensor) -> None:
        """Keep the encoder's side of these sentences alone."""
        for state in self.states:
            state.select_sentences(sentences)


class Ensemble:
    """Models of one vocabulary; the next token's probability is the mean of theirs."""

    def __init__(self, models: Sequence[Transformer]) -> None:
        self.models = list(models)

    @property
    def device(self) -> torch.device:
        """Where all of them are."""
        return self.models[0].device

    def start(self, source: Packed, num_sentences: int) -> EnsembleState:
        """Encode sources, a window for each, and return the state from which a search sets out."""
        return EnsembleState([model.start(source, num_sentences) for model in self.models])

    def step(self, tokens: Tensor, state: EnsembleState) -> Tensor:
        """Feed the newest token of every hypothesis, (R,); return log-probabilities, (R, V)."""
        log_probs = [
            model.step(tokens, own) for model, own in zip(self.models, state.states, strict=True)
        ]
        return torch.stack(log_probs).logsumexp(dim=0) - math.log(len(log_probs))
