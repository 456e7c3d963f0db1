"""Search and scoring with torch: on GPUs, and for what CTranslate2 does not have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import zip_longest

import numpy as np
import torch
from numpy.typing import NDArray

from seq2seq.config import DecodingConfig
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.constraints import Forbidden, Required, TokenTexts
from seq2seq.decoding.ensemble import Ensemble, EnsembleDecoder, coverage_of
from seq2seq.decoding.hypothesis import (
    Advance,
    Hypothesis,
    LengthPenalty,
    Pairs,
    first_of_each_text,
)
from seq2seq.decoding.lengths import SENTENCES, batches, max_target_tokens
from seq2seq.decoding.rules import DiverseGroups, MinLength, NoRepeatNgram, Prefix
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
        self.ensemble = Ensemble(models, tokenizer)
        self.source, self.target = tokenizer.sentence_pieces
        self.max_target_len, self.name = max_target_len, name
        self._most = SENTENCES if self.ensemble.device.type == "cpu" else None

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
        here. advance: called with the numbers of segments and target tokens of each batch. Raises
        UserError if the model predicts NaN.
        """
        # Samples and diverse groups are searched as sentences of their own.
        copies = nbest if decoding.sample else decoding.diverse_groups
        width = copies if decoding.sample else decoding.beam
        for segments in blocks:
            found: list[list[Hypothesis]] = [[] for _ in segments]
            lens = [(len(segment.source) + 1) * width for segment in segments]
            for indices in batches(lens, decoding.batch_tokens, self._most):
                batch = [segments[i] for i in indices for _ in range(copies)]
                results = self._search_batch(batch, decoding, copies, nbest)
                for number, i in enumerate(indices):
                    own = results[number * copies : (number + 1) * copies]
                    found[i] = self._merged(own, decoding, nbest)
                if advance:
                    tokens = sum(len(found[i][0].pieces) + 1 for i in indices)
                    advance(len(indices), tokens)
            yield found

    @torch.inference_mode()
    def _search_batch(
        self, segments: Sequence[Segment], decoding: DecodingConfig, copies: int, nbest: int
    ) -> list[list[Finished]]:
        target, weight = self.target, decoding.coverage_penalty
        beam = 1 if decoding.sample else decoding.beam // copies
        decoder = EnsembleDecoder(
            self.ensemble,
            self.source.piece_ids([segment.source for segment in segments]),
            coverage=weight > 0,
        )
        try:
            return beam_search(
                decoder,
                [self._max_len(segment, decoding) for segment in segments],
                beam=beam,
                bos_id=target.bos_id,
                eos_id=target.eos_id,
                penalty=LengthPenalty(decoding.length_penalty, decoding.penalty_form),
                patience=decoding.patience,
                nbest=min(nbest, beam),
                rules=self._rules(segments, decoding, copies),
                bonus=(lambda: decoder.coverage_penalty(weight)) if weight > 0 else None,
            )
        except FloatingPointError:
            raise UserError(not_a_number(self.name)) from None

    def _merged(
        self, groups: Sequence[Sequence[Finished]], decoding: DecodingConfig, nbest: int
    ) -> list[Hypothesis]:
        """Return the samples of a segment, or the best of its groups with different texts."""
        target = self.target
        if decoding.sample:
            chosen = [group[0] for group in groups]
        else:
            chosen = [each for rank in zip_longest(*groups) for each in rank if each]
            if nbest > 1:
                texts = target.decode([each.tokens for each in chosen])
                chosen = first_of_each_text(chosen, texts)
            chosen = sorted(chosen[:nbest], key=lambda each: -each.score)
        return [
            Hypothesis(target.pieces(each.tokens), each.log_prob, each.score) for each in chosen
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
        has_alternatives = not decoding.sample and decoding.beam > copies
        forbidden = [_forbidden(segment, wait=has_alternatives) for segment in segments]
        if any(forbidden):
            rules.append(Forbidden(forbidden, self.texts, eos_id))
        required = [self._required(segment) for segment in segments]
        if any(required):
            rules.append(Required(required, self.texts, eos_id))
        if decoding.diverse_groups > 1:
            rules.append(DiverseGroups(copies, decoding.diversity))
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
        weight, scored = decoding.coverage_penalty, []
        forced = self._force(pairs, decoding.batch_tokens, need_weights=weight > 0)
        for (source, target), (log_probs, attention) in zip(pairs, forced, strict=True):
            score = sum(log_probs) / penalty(len(log_probs))
            if attention is not None:
                reached = torch.from_numpy(attention[:, : len(source)]).sum(dim=0)
                score += weight * float(coverage_of(reached))
            scored.append(Hypothesis(list(target), sum(log_probs), score, log_probs=log_probs))
        return scored

    def attention(self, pairs: Pairs, decoding: DecodingConfig) -> list[NDArray[np.float32]]:
        """Return the cross-attention of given targets, (target, source) pieces each."""
        forced = self._force(pairs, decoding.batch_tokens, need_weights=True)
        return [
            attention[: len(target), : len(source)]
            for (source, target), (_, attention) in zip(pairs, forced, strict=True)
            if attention is not None
        ]

    def _force(
        self, pairs: Pairs, batch_tokens: int, *, need_weights: bool
    ) -> list[tuple[list[float], NDArray[np.float32] | None]]:
        """Return the log-probabilities of each target and its end, and the attention if needed."""
        sources = self.source.piece_ids([source for source, _ in pairs])
        targets = self.target.piece_ids([target for _, target in pairs])
        found: list[tuple[list[float], NDArray[np.float32] | None]] = [([], None)] * len(pairs)
        lens = [max(map(len, pair)) + 1 for pair in pairs]
        for indices in batches(lens, batch_tokens, self._most):
            log_probs, attention = self.ensemble.score(
                [sources[i] for i in indices], [targets[i] for i in indices],
                need_weights=need_weights,
            )  # fmt: skip
            rows = log_probs.cpu().double()
            weights = None if attention is None else attention.float().cpu().numpy()
            for row, i in enumerate(indices):
                size = len(targets[i]) + 1
                own = None if weights is None else weights[row, :size]
                found[i] = rows[row, :size].tolist(), own
        return found


def _forbidden(segment: Segment, *, wait: bool) -> list[tuple[Term, bool]]:
    """Return the forbidden terms, with whether to wait: always for a part of a required term."""
    required = [term.text for term in segment.terms if term.required]
    return [
        (term, wait or any(term.text in text for text in required))
        for term in segment.terms
        if not term.required
    ]
