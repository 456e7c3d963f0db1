"""Search and scoring with torch: on GPUs, and for what CTranslate2 does not have.

B is the number of sentences, W the beam width, T of target tokens, S of source tokens, V the
vocabulary size.
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
from seq2seq.data.packing import end_rows, pack
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.engine import SENTENCES, Engine, Pairs, batches
from seq2seq.decoding.hypothesis import Hypothesis, LengthPenalty
from seq2seq.decoding.rules import MinLength, NoRepeatNgram, Prefix, Required, TokenTexts
from seq2seq.decoding.sampling import Sampler, Sampling
from seq2seq.decoding.search import Finished, Rule, beam_search
from seq2seq.decoding.segments import Segment
from seq2seq.errors import UserError, not_a_number
from seq2seq.machine.devices import to_device
from seq2seq.machine.threads import adapt_threads
from seq2seq.model.transformer import Transformer

Rows = Sequence[Sequence[int]]
SCORED_AT_ONCE = 1024
"""Number of tokens whose log-probabilities are computed at once."""


class EnsembleDecoder:
    """The `Decoder` of a search: models with one tokenizer and the states of their sentences.

    The probabilities of the models, in most cases one, are averaged.
    """

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


class TorchEngine(Engine):
    """Searches and scores pieces of text with a model or an ensemble."""

    def __init__(
        self,
        models: Sequence[Transformer],
        tokenizer: Tokenizer,
        max_target_len: int,
        name: str = "the model",
    ) -> None:
        super().__init__(tokenizer, max_target_len, name)
        self.models = models

    def decoder(self, sources: Sequence[Sequence[str]]) -> EnsembleDecoder:
        """Return the models with the states of sources, given as pieces."""
        return EnsembleDecoder(self.models, self.tokenizer, self.source.piece_ids(sources))

    @cached_property
    def texts(self) -> TokenTexts:
        """The texts of the target tokens."""
        return TokenTexts(self.target.token_bytes())

    def _most(self, count: int, decoding: DecodingConfig) -> int | None:
        return SENTENCES if self.models[0].device.type == "cpu" else None

    @torch.inference_mode()
    def _submit(
        self, segments: Sequence[Segment], decoding: DecodingConfig, nbest: int
    ) -> list[list[Hypothesis]]:
        copies = nbest if decoding.sample else 1  # samples are searched as sentences of their own
        rows = [segment for segment in segments for _ in range(copies)]
        try:
            found = beam_search(
                self.decoder([segment.source for segment in rows]),
                [self.max_len(segment, decoding) for segment in rows],
                beam=1 if decoding.sample else decoding.beam,
                bos_id=self.target.bos_id,
                eos_id=self.target.eos_id,
                penalty=LengthPenalty(decoding.length_penalty, decoding.penalty_form),
                patience=decoding.patience,
                nbest=nbest,
                rules=self._rules(rows, decoding, copies),
            )
        except FloatingPointError:
            raise UserError(not_a_number(self.name)) from None
        hypotheses = [list(map(self._hypothesis, own)) for own in found]
        starts = range(0, len(found), copies)
        return [list(chain(*hypotheses[start : start + copies])) for start in starts]

    def _hypothesis(self, found: Finished) -> Hypothesis:
        return Hypothesis(self.target.pieces(found.tokens), found.log_prob, found.score)

    def _rules(
        self, segments: Sequence[Segment], decoding: DecodingConfig, copies: int
    ) -> list[Rule]:
        eos_id = self.target.eos_id
        rules: list[Rule] = []
        if decoding.min_length:
            rules.append(MinLength(decoding.min_length, eos_id))
        if decoding.no_repeat_ngram:
            rules.append(NoRepeatNgram(decoding.no_repeat_ngram))
        terms = [segment.terms for segment in segments]
        if any(terms):
            rules.append(Required(terms, self.texts, eos_id))
        if decoding.sample:
            sampling = Sampling(decoding.temperature, decoding.top_k, decoding.top_p)
            seeds = [[decoding.seed, *s.seed, i % copies] for i, s in enumerate(segments)]
            rules.append(Sampler(sampling, seeds))
        if any(segment.prefix for segment in segments):
            prefixes = self.target.piece_ids([segment.prefix for segment in segments])
            rules = [Prefix(prefixes, rules)]
        return rules

    def log_probs(self, pairs: Pairs, decoding: DecodingConfig) -> list[list[float]]:
        found: list[list[float]] = [[] for _ in pairs]
        for indices, log_probs, _ in self._forced(pairs, decoding):
            for row, i in zip(log_probs.cpu().double().tolist(), indices, strict=True):
                found[i] = row[: len(pairs[i][1]) + 1]
        return found

    def attention(self, pairs: Pairs, decoding: DecodingConfig) -> list[NDArray[np.float32]]:
        found = [np.zeros((0, len(source)), dtype=np.float32) for source, _ in pairs]
        for indices, _, attention in self._forced(pairs, decoding):
            for weights, i in zip(attention.cpu().numpy(), indices, strict=True):
                source, target = pairs[i]
                found[i] = weights[: len(target), : len(source)]
        return found

    @torch.inference_mode()
    def _forced(
        self, pairs: Pairs, decoding: DecodingConfig
    ) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Yield the indices of each batch of pairs, and what `EnsembleDecoder.score` returns."""
        lens = [max(map(len, pair)) + 1 for pair in pairs]
        for indices in batches(lens, decoding.batch_tokens, self._most(len(pairs), decoding)):
            sources, targets = zip(*(pairs[i] for i in indices), strict=True)
            yield indices, *self.decoder(sources).score(self.target.piece_ids(targets))
