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
from seq2seq.machine.threads import adapt_threads
from seq2seq.model.transformer import Transformer

Rows = Sequence[Sequence[int]]
SCORED_AT_ONCE = 1024
"""Number of tokens whose log-probabilities are computed at once."""


class EnsembleDecoder:
    """Models with one tokenizer and the states of their sentences: the `Decoder` of a search."""

    def __init__(self, models: Sequence[Transformer], tokenizer: Tokenizer, sources: Rows) -> None:
        """sources: ids without the end symbol."""
        self.models, self.target, self.device = models, tokenizer.target, models[0].device
        self._excluded = torch.tensor([self.target.pad_id, self.target.bos_id], device=self.device)
        rows = [np.array(source, dtype=np.int32) for source in sources]
        packed = pack(end_rows(rows, tokenizer.source))
        adapt_threads(self.device)
        self._states = [model.start(packed) for model in models]

    def step(self, tokens: Tensor) -> Tensor:
        adapt_threads(self.device)
        log_probs = mean_log_prob(
            [
                self._log_probs(model.output(model.step(tokens, state)))
                for model, state in zip(self.models, self._states, strict=True)
            ]
        )
        log_probs[..., self.target.unk_id] = -torch.inf  # not in a translation
        return log_probs

    def select(self, sentences: NDArray[np.int64], origins: NDArray[np.int64]) -> None:
        count, beam = len(self._states[0].source_lens), origins.shape[1]
        rows = (sentences[:, None] * beam + origins).flatten()
        if not np.array_equal(rows, np.arange(count * beam)):
            for state in self._states:
                state.select(rows, sentences)

    def _log_probs(self, logits: Tensor) -> Tensor:
        """Return log-probabilities, (..., V), of the tokens that may be part of a target."""
        return logits.float().index_fill_(-1, self._excluded, -torch.inf).log_softmax(dim=-1)

    def score(self, targets: Rows) -> tuple[Tensor, Tensor]:
        """Return the log-probability of each token of given targets and their ends, (B, T).

        Also the cross-attention of the first model, (B, T, S).
        """
        labels = np.full((len(targets), max(map(len, targets)) + 1), self.target.eos_id)
        for row, ids in enumerate(targets):
            labels[row, : len(ids)] = ids
        inputs = np.insert(labels[:, :-1], 0, self.target.bos_id, axis=1)
        tokens, indices = to_device(inputs, self.device), to_device(labels, self.device)
        log_probs = []
        adapt_threads(self.device)
        for model, state in zip(self.models, self._states, strict=True):
            state.watched_layer = model.alignment_layer
            # In parts, to save memory.
            rows = model.decode(tokens, state).flatten(0, 1).split(SCORED_AT_ONCE)
            parts = [
                self._log_probs(model.output(x)).gather(1, ids[:, None])
                for x, ids in zip(rows, indices.flatten().split(SCORED_AT_ONCE), strict=True)
            ]
            log_probs.append(torch.cat(parts).view(indices.shape))
        return mean_log_prob(log_probs), self._states[0].attention


def mean_log_prob(log_probs: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the mean probability."""
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.stack(list(log_probs)).logsumexp(dim=0) - math.log(len(log_probs))
