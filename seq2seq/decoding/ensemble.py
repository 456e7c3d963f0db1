"""Models that search and score together, with the states of their sentences.

B is the number of sentences, W the beam width, V the vocabulary size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from seq2seq.data.packing import end_rows, pack
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.search import Best, best_of, only
from seq2seq.decoding.segments import Segment
from seq2seq.machine.threads import timed
from seq2seq.model.cache import AttentionHeads, DecoderState
from seq2seq.model.transformer import Transformer

CHUNK_ROWS = 64
"""Number of hypotheses whose logits are computed at once on a CPU: what follows the product finds
those of V = 8,000 in its cache."""


class Ensemble:
    """Models with one tokenizer, whose probabilities are averaged; one model in most cases."""

    def __init__(self, models: Sequence[Transformer], tokenizer: Tokenizer) -> None:
        self.models, self.tokenizer = list(models), tokenizer
        self.device = self.models[0].device
        target = tokenizer.target
        self._never = torch.tensor(
            [target.pad_id, target.bos_id, target.unk_id], device=self.device
        )

    def start(
        self, sources: Sequence[Sequence[int]], beam: int = 1, heads: AttentionHeads | None = None
    ) -> list[DecoderState]:
        """Encode sources; return the state of each model."""
        rows = [np.array(source, dtype=np.int32) for source in sources]
        source = pack(end_rows(rows, self.tokenizer.source))
        with timed("encoding", len(source.ids), self.device):
            return [
                model.start(source, beam, None if number else heads)
                for number, model in enumerate(self.models)
            ]

    def step(self, tokens: Tensor, states: Sequence[DecoderState]) -> Continuations:
        """Feed the newest token of each hypothesis, (B, W); states: one of each model."""
        with timed("search", tokens.numel(), tokens.device):
            by_model = zip(self.models, states, strict=True)
            hidden = [model.step(tokens, state) for model, state in by_model]
        return Continuations(hidden, [model.output for model in self.models], self._never)

    @torch.inference_mode()
    def force(
        self,
        pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
        *,
        need_weights: bool = False,
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the log-probability of each token of given targets and their ends, (B, T).

        If needed, also each layer's weights of the first model's cross-attention, (B, H, T, S).
        """
        target = self.tokenizer.target
        states = self.start([source for source, _ in pairs])
        width = max(len(ids) for _, ids in pairs) + 1
        labels = torch.full((len(pairs), width), target.eos_id)
        for row, (_, ids) in enumerate(pairs):
            labels[row, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
        starts = torch.full((len(pairs), 1), target.bos_id)
        inputs = torch.cat([starts, labels[:, :-1]], dim=1).to(self.device)
        labels = labels.to(self.device)
        with timed("scoring", inputs.numel(), self.device):
            found = [
                model.score(inputs, labels, state, need_weights=need_weights and not number)
                for number, (model, state) in enumerate(zip(self.models, states, strict=True))
            ]
        return mean_log_prob([log_probs for log_probs, _ in found]), found[0][1]


@dataclass(frozen=True)
class Continuations:
    """The next tokens of all hypotheses, by the hidden states of one model or of several."""

    hidden: Sequence[Tensor]
    """(B, W, D), of each model; an ensemble averages the probabilities."""
    outputs: Sequence[nn.Module]
    """The output projection of each model."""
    never: Tensor
    """Tokens that are no continuation: padding, the start symbol, the unknown token."""

    def all(self) -> Tensor:
        """Return the log-probabilities of all tokens, (B, W, V); -inf for those in `never`."""
        parts = [
            output(hidden).float().log_softmax(dim=-1)
            for hidden, output in zip(self.hidden, self.outputs, strict=True)
        ]
        return mean_log_prob(parts).index_fill_(-1, self.never, -torch.inf)

    def best(self, live: Tensor, count: int, eos_id: int, must_end: NDArray[np.bool_]) -> Best:
        """Return the `count` best continuations of each sentence.

        live: log-probabilities of the hypotheses, (B, W). must_end: (B,): the sentences of which
        only the end symbol is a continuation.
        """
        size, width = live.shape
        on_cpu = live.device.type == "cpu"
        at_once = max(1, CHUNK_ROWS // width if on_cpu else size)
        found = []
        for start in range(0, size, at_once):
            own = slice(start, start + at_once)
            part = Continuations([x[own] for x in self.hidden], self.outputs, self.never)
            best = part._best_by_kernel if on_cpu and len(self.hidden) == 1 else part._best_by_torch
            found.append(best(live[own], count, eos_id, must_end[own]))
        ranks, origins, tokens = map(torch.cat, zip(*found, strict=True))
        return ranks, origins, tokens

    def _best_by_torch(
        self, live: Tensor, count: int, eos_id: int, must_end: NDArray[np.bool_]
    ) -> Best:
        log_probs = self.all()
        if must_end.any():
            ends = torch.from_numpy(must_end).to(live.device)
            log_probs = torch.where(ends[:, None, None], only(eos_id, log_probs), log_probs)
        return best_of(log_probs, live, count)

    def _best_by_kernel(
        self, live: Tensor, count: int, eos_id: int, must_end: NDArray[np.bool_]
    ) -> Best:
        from seq2seq.machine import kernels  # which not every command has to load

        [hidden], [output] = self.hidden, self.outputs
        ranks = torch.empty(len(live), count, dtype=torch.float32)
        origins, tokens = (torch.empty(len(live), count, dtype=torch.int64) for _ in range(2))
        given = output(hidden).float().numpy(), live.numpy(), self.never.numpy()
        found = ranks.numpy(), origins.numpy(), tokens.numpy()
        kernels.best_continuations(*given, eos_id, must_end, *found)
        return ranks, origins, tokens


def mean_log_prob(log_probs: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the mean probability."""
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.stack(list(log_probs)).logsumexp(dim=0) - math.log(len(log_probs))


class EnsembleDecoder:
    """An ensemble and the states of its sentences: the `Decoder` of a search."""

    def __init__(
        self,
        ensemble: Ensemble,
        segments: Sequence[Segment],
        beam: int,
        copies: int,
        heads: AttentionHeads | None,
    ) -> None:
        """copies: of each segment; all start at once if there are several. heads: for coverage."""
        self.ensemble, self.segments, self.device = ensemble, segments, ensemble.device
        self.beam, self.copies, self.heads = beam, copies, heads
        self._states: list[DecoderState] = []
        """One of each model."""

    def start(self, numbers: Sequence[int]) -> None:
        own = numbers[:: self.copies]
        sources = [self.segments[number // self.copies].source for number in own]
        states = self.ensemble.start(sources, self.beam, self.heads)
        if self.copies > 1:
            for state in states:
                state.keep([slot for slot in range(len(own)) for _ in range(self.copies)])
        if self._states:
            for state, new in zip(self._states, states, strict=True):
                state.extend(new)
        else:
            self._states = states

    def step(self, tokens: Tensor) -> Continuations:
        return self.ensemble.step(tokens, self._states)

    def select(self, origins: Tensor) -> None:
        for state in self._states:
            state.select(origins)

    def keep(self, slots: Sequence[int]) -> None:
        if not slots:
            self._states = []
        for state in self._states:
            state.keep(slots)

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
