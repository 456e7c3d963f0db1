"""Search and scoring with PyTorch, on GPUs and for options that CTranslate2 does not support.

B is the number of sentences, W the beam width, T the number of target tokens, S the number of
source tokens, V the vocabulary size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seq2seq.config import DecodingConfig
from seq2seq.data.batching import add_eos, pack
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.engine import (
    CPU_BATCH,
    Engine,
    Hypothesis,
    Pairs,
    Source,
    batches,
    length_penalty,
)
from seq2seq.decoding.rules import (
    MinLength,
    NoRepeatNgram,
    Prefix,
    RequiredTerms,
    Sampler,
    Sampling,
    TokenTexts,
)
from seq2seq.decoding.search import Rule, beam_search
from seq2seq.errors import UserError, not_a_number
from seq2seq.machine.devices import to_device
from seq2seq.machine.threads import adapt_threads
from seq2seq.model.transformer import Transformer

Ids = Sequence[Sequence[int]]
GPU_BATCH_TOKENS = 65_536
"""Default of `decoding.batch_tokens` on a GPU. With small batches the GPU waits for the host."""
GPU_ROWS = 4096
"""Maximum number of hypotheses in a batch on a GPU: their log-probabilities are in memory."""
CHUNK_TOKENS = 1024
"""Maximum number of tokens whose logits `score` keeps in memory at a time."""


class EnsembleDecoder:
    """`Decoder` of an ensemble or of a single model. Averages the probabilities of the models."""

    def __init__(self, models: Sequence[Transformer], tokenizer: Tokenizer, sources: Ids) -> None:
        """sources: token ids without the end symbol."""
        self.models, self.target, self.device = models, tokenizer.target, models[0].device
        self._excluded = torch.tensor(self.target.never_generated, device=self.device)
        count = int(tokenizer.source.language_first)
        rows = [np.array(source[count:], dtype=np.int32) for source in sources]
        # (B, 1), or (B, 2) with the target language.
        self._starts = np.array([[self.target.bos_id, *source[:count]] for source in sources])
        packed = pack(add_eos(rows, tokenizer.source))
        adapt_threads(self.device)
        self._states = [model.start(packed) for model in models]

    def step(self, tokens: Tensor) -> Tensor:
        adapt_threads(self.device)
        newest = tokens.reshape(-1, 1)
        if not self._states[0].length:
            newest = to_device(self._starts, self.device).repeat_interleave(tokens.shape[1], dim=0)
        log_probs = mean_log_prob(
            [
                self._log_probs(model.output(model.decode(newest, state)[:, -1]))
                for model, state in zip(self.models, self._states, strict=True)
            ]
        )
        log_probs[:, self.target.unk_id] = -torch.inf
        return log_probs.view(*tokens.shape, -1)

    def select(self, kept: NDArray[np.int64], beam_ids: NDArray[np.int64]) -> None:
        count, beam = len(self._states[0].source_lens), beam_ids.shape[1]
        rows = (kept[:, None] * beam + beam_ids).flatten()
        if not np.array_equal(rows, np.arange(count * beam)):
            for state in self._states:
                state.select(rows, kept)

    def _log_probs(self, logits: Tensor) -> Tensor:
        """Return log-probabilities, (..., V), with padding and start symbol excluded."""
        return logits.float().index_fill_(-1, self._excluded, -torch.inf).log_softmax(dim=-1)

    def score(self, targets: Ids) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of targets and end symbols, (B, T), by teacher forcing.

        Also returns the cross-attention of the first model, (B, T, S). targets: token ids without
        the end symbol; T counts it.
        """
        labels = np.full((len(targets), max(map(len, targets)) + 1), self.target.eos_id)
        for row, ids in enumerate(targets):
            labels[row, : len(ids)] = ids
        inputs = np.concatenate([self._starts, labels[:, :-1]], axis=1)
        first = self._starts.shape[1] - 1  # position of the first label
        tokens, indices = to_device(inputs, self.device), to_device(labels, self.device)
        log_probs = []
        adapt_threads(self.device)
        for model, state in zip(self.models, self._states, strict=True):
            state.alignment_layer = model.alignment_layer
            # Logits are computed in chunks to save memory.
            hidden = model.decode(tokens, state)[:, first:].flatten(0, 1).split(CHUNK_TOKENS)
            chunks = [
                self._log_probs(model.output(x)).gather(1, ids[:, None])
                for x, ids in zip(hidden, indices.flatten().split(CHUNK_TOKENS), strict=True)
            ]
            log_probs.append(torch.cat(chunks).view(indices.shape))
        return mean_log_prob(log_probs), self._states[0].cross_attention[:, first:]


def mean_log_prob(log_probs: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the mean of the models' probabilities."""
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.stack(list(log_probs)).logsumexp(dim=0) - math.log(len(log_probs))


class TorchEngine(Engine):
    """Searches and scores with a PyTorch model or an ensemble of them."""

    def __init__(
        self,
        models: Sequence[Transformer],
        tokenizer: Tokenizer,
        max_target_len: int,
        name: str = "the model",
    ) -> None:
        super().__init__(tokenizer, max_target_len, name)
        self.models = models
        if models[0].device.type != "cpu":
            self.batch_tokens = GPU_BATCH_TOKENS

    def decoder(self, sources: Sequence[Sequence[str]]) -> EnsembleDecoder:
        """Return a decoder for source sentences, given as pieces."""
        return EnsembleDecoder(self.models, self.tokenizer, self.source.piece_ids(sources))

    @cached_property
    def texts(self) -> TokenTexts:
        """Texts of the target tokens."""
        return TokenTexts(self.target.token_bytes)

    def _max_sentences(self, count: int, width: int) -> int:
        on_cpu = self.models[0].device.type == "cpu"
        return CPU_BATCH if on_cpu else max(1, GPU_ROWS // width)

    @torch.inference_mode()
    def _search(
        self, batches: Sequence[Sequence[Source]], decoding: DecodingConfig, nbest: int
    ) -> Iterator[list[list[Hypothesis]]]:
        copies = nbest if decoding.sample else 1  # one sentence of the batch per sample
        for batch in batches:
            sentences = [source for source in batch for _ in range(copies)]
            try:
                finished = beam_search(
                    self.decoder([source.pieces for source in sentences]),
                    [self.max_len(source, decoding) for source in sentences],
                    beam=1 if decoding.sample else decoding.beam,
                    bos_id=self.target.bos_id,
                    eos_id=self.target.eos_id,
                    penalty=lambda length: length_penalty(decoding, self.language_first + length),
                    patience=decoding.patience,
                    nbest=nbest,
                    rules=self._rules(sentences, decoding, copies),
                )
            except FloatingPointError:
                raise UserError(not_a_number(self.name)) from None
            yield [
                [
                    Hypothesis(self.target.pieces(x.tokens), x.log_prob)
                    for x in chain(*finished[start : start + copies])
                ]
                for start in range(0, len(finished), copies)
            ]

    def _rules(
        self, sources: Sequence[Source], decoding: DecodingConfig, copies: int
    ) -> list[Rule]:
        eos_id = self.target.eos_id
        rules: list[Rule] = []
        if decoding.min_length:
            rules.append(MinLength(decoding.min_length, eos_id))
        if decoding.no_repeat_ngram:
            rules.append(NoRepeatNgram(decoding.no_repeat_ngram))
        terms = [source.terms for source in sources]
        if any(terms):
            rules.append(RequiredTerms(terms, self.texts, eos_id))
        if decoding.sample:
            sampling = Sampling(decoding.temperature, decoding.top_k, decoding.top_p)
            seeds = [[decoding.seed, *x.seed, i % copies] for i, x in enumerate(sources)]
            rules.append(Sampler(sampling, seeds))
        if any(source.prefix for source in sources):
            prefixes = self.target.piece_ids([source.prefix for source in sources])
            rules = [Prefix(prefixes, rules)]
        return rules

    def _log_probs(self, pairs: Pairs, decoding: DecodingConfig) -> list[list[float]]:
        rows: list[list[float]] = [[] for _ in pairs]
        for indices, log_probs, _ in self._teacher_forcing(pairs, decoding):
            for row, i in zip(log_probs.cpu().double().tolist(), indices, strict=True):
                rows[i] = row[: len(pairs[i][1]) + 1]
        return rows

    def attention(self, pairs: Pairs, decoding: DecodingConfig) -> list[NDArray[np.float32]]:
        matrices = [np.zeros((0, len(source)), dtype=np.float32) for source, _ in pairs]
        for indices, _, attention in self._teacher_forcing(pairs, decoding):
            for weights, i in zip(attention.cpu().numpy(), indices, strict=True):
                source, target = pairs[i]
                matrices[i] = self.with_language(weights[: len(target)], len(source))
        return matrices

    @torch.inference_mode()
    def _teacher_forcing(
        self, pairs: Pairs, decoding: DecodingConfig
    ) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Yield indices, log-probabilities and cross-attention of each batch of pairs."""
        lens = [max(map(len, pair)) + 1 for pair in pairs]
        limit = self._max_sentences(len(pairs), width=1)
        for indices in batches(lens, decoding.batch_tokens or self.batch_tokens, limit):
            sources, targets = zip(*(pairs[i] for i in indices), strict=True)
            yield indices, *self.decoder(sources).score(self.target.piece_ids(targets))
