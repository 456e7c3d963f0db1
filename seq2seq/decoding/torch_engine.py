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
from seq2seq.decoding.ensemble import EnsembleDecoder
from seq2seq.decoding.hypothesis import (
    Advance,
    Hypothesis,
    LengthPenalty,
    Pairs,
    first_of_each_text,
)
from seq2seq.decoding.lengths import SENTENCES, batches, max_target_tokens
from seq2seq.decoding.rules import MinLength, NoRepeatNgram, Prefix
from seq2seq.decoding.sampling import Sampler, Sampling
from seq2seq.decoding.search import Finished, Rule, beam_search
from seq2seq.decoding.segments import Segment
from seq2seq.decoding.terms import Term
from seq2seq.errors import UserError, not_a_number
from seq2seq.model.transformer import Transformer


class TorchEngine:
    """Searches and scores pieces of text with a model or an ensemble."""

    def __init__(
        self,
        models: Sequence[Transformer],
        tokenizer: Tokenizer,
        max_target_len: int,
        name: str = "the model",
    ) -> None:
        """max_target_len: number of positions of the models. name: for errors."""
        self.models, self.tokenizer = models, tokenizer
        self.source, self.target = tokenizer.sentence_pieces
        self.max_target_len, self.name = max_target_len, name
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
        """Yield, block by block, the `nbest` best hypotheses of each segment, or fewer.

        The best come first; samples are in the order of their draws. scores: they cost nothing
        here. Raises UserError if the model predicts NaN.
        """
        copies = nbest if decoding.sample else 1  # samples are searched as sentences of their own
        beam = 1 if decoding.sample else decoding.beam
        for segments in blocks:
            found: list[list[Hypothesis]] = [[] for _ in segments]
            lens = [(len(segment.source) + 1) * copies * beam for segment in segments]
            for indices in batches(lens, decoding.batch_tokens, self._most):
                batch = [segments[i] for i in indices for _ in range(copies)]
                results = self._search_batch(batch, decoding, copies, min(nbest, beam))
                for number, finished in enumerate(results):
                    own = self._hypotheses(finished, nbest)
                    found[indices[number // copies]] += own[:1] if decoding.sample else own
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
                [self._max_len(segment, decoding) for segment in segments],
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

    def _hypotheses(self, finished: Sequence[Finished], nbest: int) -> list[Hypothesis]:
        """Return the best finished hypotheses, with different texts."""
        if nbest > 1:
            texts = self.target.decode([each.tokens for each in finished])
            finished = first_of_each_text(finished, texts)
        return [
            Hypothesis(self.target.pieces(each.tokens), each.log_prob, each.score)
            for each in finished[:nbest]
        ]

    def _max_len(self, segment: Segment, decoding: DecodingConfig) -> int:
        needed = len(segment.prefix) + sum(len(tokens) for _, tokens in self._required(segment))
        return max_target_tokens(len(segment.source), needed, decoding, self.max_target_len)

    def _required(self, segment: Segment) -> list[tuple[Term, list[int]]]:
        terms = [term for term in segment.terms if term.required]
        if not terms:
            return []
        tokens = self.target.encode([term.text for term in terms])
        return list(zip(terms, tokens, strict=True))

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
        required = [self._required(segment) for segment in segments]
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

    def score(self, pairs: Pairs, decoding: DecodingConfig) -> list[Hypothesis]:
        """Return given targets with their log-probabilities; pairs: pieces of source and target."""
        penalty = LengthPenalty(decoding.length_penalty, decoding.penalty_form)
        scored = [Hypothesis(list(target)) for _, target in pairs]
        for indices, log_probs, _ in self._forced(pairs, decoding):
            for row, i in zip(log_probs.cpu().double(), indices, strict=True):
                own, each = row[: len(pairs[i][1]) + 1].tolist(), scored[i]
                each.log_probs, each.log_prob = own, sum(own)
                each.score = each.log_prob / penalty(len(own))
        return scored

    def attention(self, pairs: Pairs, decoding: DecodingConfig) -> list[NDArray[np.float32]]:
        """Return the cross-attention of given targets, (target, source) pieces each."""
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
