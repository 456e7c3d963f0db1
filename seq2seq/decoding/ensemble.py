"""Models that search together: their probabilities are averaged; in most cases one model.

B is the number of sentences, W the beam width, T of target tokens, S of source tokens, V the
vocabulary size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seq2seq.data.packing import end_rows, pack
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.machine.devices import to_device
from seq2seq.machine.threads import timed
from seq2seq.model.cache import DecoderState
from seq2seq.model.transformer import Transformer

Rows = Sequence[Sequence[int]]
SCORED_AT_ONCE = 1024
"""Number of tokens whose log-probabilities are computed at once."""


class Ensemble:
    """Models with one tokenizer."""

    def __init__(self, models: Sequence[Transformer], tokenizer: Tokenizer) -> None:
        self.models, self.tokenizer = list(models), tokenizer
        self.device = self.models[0].device
        target = tokenizer.target
        self._excluded = torch.tensor([target.pad_id, target.bos_id], device=self.device)

    def start(self, sources: Rows) -> list[DecoderState]:
        """Encode sources, ids without the end symbol; return the state of each model."""
        rows = [np.array(source, dtype=np.int32) for source in sources]
        packed = pack(end_rows(rows, self.tokenizer.source))
        with timed("encoding", len(packed.ids), self.device):
            return [model.start(packed) for model in self.models]

    def step(
        self, tokens: Tensor, states: Sequence[DecoderState], *, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Feed the newest tokens, (B, W); return log-probabilities of the next, (B, W, V).

        If needed, also the cross-attention of the first model, (B, W, S).
        """
        with timed("search", tokens.numel(), tokens.device):
            found = [
                model.step(tokens, state, need_weights=need_weights and not number)
                for number, (model, state) in enumerate(zip(self.models, states, strict=True))
            ]
            log_probs = [
                self._log_probs(model.output(hidden))
                for model, (hidden, _) in zip(self.models, found, strict=True)
            ]
        return mean_log_prob(log_probs), found[0][1]

    def _log_probs(self, logits: Tensor) -> Tensor:
        """Return log-probabilities, (..., V), of the tokens that may be part of a target."""
        return logits.float().index_fill_(-1, self._excluded, -torch.inf).log_softmax(dim=-1)

    @torch.inference_mode()
    def score(
        self, sources: Rows, targets: Rows, *, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Return the log-probability of each token of given targets and their ends, (B, T).

        If needed, also the cross-attention of the first model, (B, T, S).
        """
        target, states = self.tokenizer.target, self.start(sources)
        labels = np.full((len(targets), max(map(len, targets)) + 1), target.eos_id)
        for row, ids in enumerate(targets):
            labels[row, : len(ids)] = ids
        inputs = np.insert(labels[:, :-1], 0, target.bos_id, axis=1)
        tokens, indices = to_device(inputs, self.device), to_device(labels, self.device)
        found, weights = [], None
        with timed("scoring", inputs.size, self.device):
            for number, (model, state) in enumerate(zip(self.models, states, strict=True)):
                needed = need_weights and not number
                hidden, attention = model.decode(tokens, state, need_weights=needed)
                weights = attention if needed else weights
                # In parts, to save memory.
                rows = hidden.flatten(0, 1).split(SCORED_AT_ONCE)
                parts = [
                    self._log_probs(model.output(x)).gather(1, ids[:, None])
                    for x, ids in zip(rows, indices.flatten().split(SCORED_AT_ONCE), strict=True)
                ]
                found.append(torch.cat(parts).view(indices.shape))
        return mean_log_prob(found), weights


def mean_log_prob(log_probs: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the mean probability."""
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.stack(list(log_probs)).logsumexp(dim=0) - math.log(len(log_probs))


class EnsembleDecoder:
    """An ensemble and the states of its sentences: the `Decoder` of a search."""

    def __init__(self, ensemble: Ensemble, sources: Rows, *, coverage: bool = False) -> None:
        """coverage: sum up the attention."""
        self.ensemble, self.device, self._needs_coverage = ensemble, ensemble.device, coverage
        self._states = ensemble.start(sources)
        self._coverage: Tensor | float = 0.0
        """(B, W, S): the cross-attention, summed over the steps."""

    def step(self, tokens: Tensor) -> Tensor:
        log_probs, attention = self.ensemble.step(
            tokens, self._states, need_weights=self._needs_coverage
        )
        if attention is not None:
            self._coverage = self._coverage + attention
        log_probs[..., self.ensemble.tokenizer.target.unk_id] = -torch.inf  # not in a translation
        return log_probs

    def select(self, sentences: NDArray[np.int64], origins: NDArray[np.int64]) -> None:
        count, beam = len(self._states[0].source_lens), origins.shape[1]
        rows = (sentences[:, None] * beam + origins).flatten()
        if np.array_equal(rows, np.arange(count * beam)):
            return
        for state in self._states:
            state.select(rows, sentences)
        if isinstance(self._coverage, Tensor):
            longest = int(self._states[0].source_lens.max())
            index = to_device(rows, self.device)
            chosen = self._coverage.flatten(0, 1).index_select(0, index)[:, :longest]
            self._coverage = chosen.unflatten(0, (-1, beam))

    def coverage_penalty(self, weight: float) -> Tensor:
        """Return the coverage penalty of hypotheses that end now, (B, W)."""
        assert isinstance(self._coverage, Tensor)
        lens = to_device(self._states[0].source_lens, self.device)[:, None] - 1
        outside = torch.arange(self._coverage.shape[-1], device=self.device) >= lens
        return weight * coverage_of(self._coverage.masked_fill(outside[:, None], 1.0))


def coverage_of(attention: Tensor) -> Tensor:
    """Return the sum of log(min(attention, 1)) over source tokens, (..., S).

    The attention is summed over the target; the coverage penalty is this times its weight (Wu et
    al. 2016, equation 14).
    """
    return attention.clamp(1e-10, 1.0).log().sum(dim=-1)
