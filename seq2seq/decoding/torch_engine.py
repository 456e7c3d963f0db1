"""Search and scoring with torch: on GPUs, and for what CTranslate2 does not have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seq2seq.config import DecodingConfig
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.constraints import Forbidden, Required, TokenTexts
from seq2seq.decoding.engine import SENTENCES, Advance, Engine, Pairs, batches
from seq2seq.decoding.ensemble import EnsembleDecoder
from seq2seq.decoding.hypothesis import Hypothesis, LengthPenalty
from seq2seq.decoding.rules import MinLength, NoRepeatNgram, Prefix
from seq2seq.decoding.sampling import Sampler, Sampling
from seq2seq.decoding.search import Finished, Rule, beam_search
from seq2seq.decoding.segments import Segment
from seq2seq.decoding.terms import Term
from seq2seq.errors import UserError, not_a_number
from seq2seq.model.transformer import Transformer


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
        self._most = SENTENCES if models[0].device.type == "cpu" else None

    def decoder(self, sources: Sequence[Sequence[str]]) -> EnsembleDecoder:
        """Return the models with the states of sources, given as pieces."""
        return EnsembleDecoder(self.models, self.tokenizer, self.source.piece_ids(sources))

    @cached_property
    def texts(self) -> TokenTexts:
        """The texts of the target tokens."""
        return TokenTexts(self.target.token_bytes())

    def search(
        self,
        blocks: Iterable[Sequence[Segment]],
        decoding: DecodingConfig,
        *,
        nbest: int = 1,
        scores: bool = True,
        advance: Advance | None = None,
    ) -> Iterator[list[list[Hypothesis]]]:
        copies = nbest if decoding.sample else 1  # samples are searched as sentences of their own
        beam = 1 if decoding.sample else decoding.beam
        for segments in blocks:
            found: list[list[Hypothesis]] = [[] for _ in segments]
            lens = [(len(segment.source) + 1) * copies * beam for segment in segments]
            for indices in batches(lens, decoding.batch_tokens, self._most):
                batch = [segments[i] for i in indices for _ in range(copies)]
                results = self._search_batch(batch, decoding, copies, nbest)
                for number, finished in enumerate(results):
                    own = [
                        Hypothesis(self.target.pieces(each.tokens), each.log_prob, each.score)
                        for each in finished
                    ]
                    found[indices[number // copies]] += self.best(own, nbest)
                if advance:
                    advance(len(indices))
            yield found

    @torch.inference_mode()
    def _search_batch(
        self, segments: Sequence[Segment], decoding: DecodingConfig, copies: int, nbest: int
    ) -> list[list[Finished]]:
        try:
            return beam_search(
                self.decoder([segment.source for segment in segments]),
                [self.max_len(segment, decoding) for segment in segments],
                beam=1 if decoding.sample else decoding.beam,
                bos_id=self.target.bos_id,
                eos_id=self.target.eos_id,
                penalty=LengthPenalty(decoding.length_penalty, decoding.penalty_form),
                patience=decoding.patience,
                nbest=nbest,
                rules=self._rules(segments, decoding, copies),
            )
        except FloatingPointError:
            raise UserError(not_a_number(self.name)) from None

    def _rules(
        self, segments: Sequence[Segment], decoding: DecodingConfig, copies: int
    ) -> list[Rule]:
        eos_id = self.target.eos_id
        rules: list[Rule] = []
        if decoding.min_length:
            rules.append(MinLength(decoding.min_length, eos_id))
        if decoding.no_repeat_ngram:
            rules.append(NoRepeatNgram(decoding.no_repeat_ngram))
        has_alternatives = not decoding.sample and decoding.beam > 1
        forbidden = [_forbidden(segment, wait=has_alternatives) for segment in segments]
        if any(forbidden):
            rules.append(Forbidden(forbidden, self.texts, eos_id))
        required = [self.required(segment) for segment in segments]
        if any(required):
            rules.append(Required(required, self.texts, eos_id))
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
        for indices in batches(lens, decoding.batch_tokens, self._most):
            sources, targets = zip(*(pairs[i] for i in indices), strict=True)
            yield indices, *self.decoder(sources).score(self.target.piece_ids(targets))


def _forbidden(segment: Segment, *, wait: bool) -> list[tuple[Term, bool]]:
    """Return the forbidden terms, with whether to wait: always for a part of a required term."""
    required = [term.text for term in segment.terms if term.required]
    return [
        (term, wait or any(term.text in text for text in required))
        for term in segment.terms
        if not term.required
    ]
