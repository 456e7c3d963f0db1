"""Search and scoring of rows of token ids with a Transformer or an ensemble."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from seq2seq.config import Config, DecodingConfig
from seq2seq.data.packing import end_rows, pack
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.constraints import Forbidden, Required, TokenTexts
from seq2seq.decoding.ensemble import Ensemble, EnsembleState
from seq2seq.decoding.options import Output
from seq2seq.decoding.request import Request
from seq2seq.decoding.rules import DiverseGroups, Draw, MinLength, NoRepeatNgram, Prefix
from seq2seq.decoding.sampling import Sampling
from seq2seq.decoding.search import Hypothesis, LengthPenalty, Rule, beam_search
from seq2seq.decoding.terms import Term
from seq2seq.errors import UserError, not_a_number
from seq2seq.machine.threads import timed
from seq2seq.model.cache import AttentionHeads, DecoderState
from seq2seq.model.transformer import Transformer

DEFAULT_LIMIT = 1_024
"""Maximum number of source tokens for a model trained without data.clean.max_len."""

Advance = Callable[[int, int], None]
"""Called with the numbers of sentences and of target tokens of each finished batch."""


@dataclass(frozen=True)
class Query:
    """What to translate: source ids without the end symbol, and what its translation must obey."""

    source: Sequence[int]
    prefix: Sequence[int] = ()
    """Target ids that the translation starts with."""
    terms: tuple[Term, ...] = ()
    seed: tuple[int, ...] = (0,)
    """Of the samples."""


@dataclass(frozen=True)
class Scored:
    """The log-probabilities of a given target, and the attention that produced it."""

    hypothesis: Hypothesis
    log_probs: list[float]
    """Of each token and of the end symbol."""
    attention: Tensor | None
    """(T, S): of each target token, without the end symbol, to the source with its end symbol."""


class Engine(Protocol):
    """What searches and scores rows of token ids."""

    tokenizer: Tokenizer
    max_source_len: int
    max_target_len: int
    """Maximum number of target tokens, with the end symbol."""

    @property
    def heads(self) -> AttentionHeads | None:
        """The heads for alignment; None if the engine returns no attention."""

    def require_supported(
        self, requests: Sequence[Request], decoding: DecodingConfig, output: Output
    ) -> None:
        """Raise UserError for options that the engine does not have."""

    def search(
        self,
        queries: Sequence[Query],
        decoding: DecodingConfig,
        *,
        nbest: int = 1,
        advance: Advance | None = None,
    ) -> list[list[Hypothesis]]:
        """Return the `nbest` best hypotheses of each query, or fewer, the best first."""

    def score(
        self,
        pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
        decoding: DecodingConfig,
        heads: AttentionHeads | None = None,
    ) -> list[Scored]:
        """Return the log-probabilities of given targets, as ids without the end symbol."""


def default_heads(model: Transformer) -> AttentionHeads:
    """Return all heads of the last layer but one, whose attention follows the source best.

    (Garg et al. 2019.)
    """
    layer = max(0, model.config.decoder_layers - 2)
    return AttentionHeads(tuple((layer, head) for head in range(model.config.num_heads)))


class SearchEngine:
    """Searches and scores batches of rows with a model."""

    def __init__(
        self,
        model: Transformer | Ensemble,
        tokenizer: Tokenizer,
        configs: Sequence[Config],
        heads: AttentionHeads | None = None,
        name: str = "the model",
    ) -> None:
        """configs: recipes of all models. heads: for alignment and coverage. name: for errors."""
        self.model, self.tokenizer, self.name = model, tokenizer, name
        first = model.models[0] if isinstance(model, Ensemble) else model
        self.heads = heads or default_heads(first)
        learned = [each.model.context for each in configs if each.model.positions == "learned"]
        self.max_source_len = min(map(max_source_tokens, configs))
        self.max_target_len = min(learned, default=torch.iinfo(torch.int64).max)
        """Maximum number of target tokens, given by learned positions."""
        target = tokenizer.target
        self._suppressed_ids = torch.tensor(
            [target.pad_id, target.bos_id, target.unk_id], device=model.device
        )
        self._texts: TokenTexts | None = None

    @property
    def texts(self) -> TokenTexts:
        """The texts of the target tokens."""
        self._texts = self._texts or TokenTexts(self.tokenizer.target.token_bytes())
        return self._texts

    def require_supported(
        self, requests: Sequence[Request], decoding: DecodingConfig, output: Output
    ) -> None:
        """Do nothing: there is no option that this engine does not have."""

    def search(
        self,
        queries: Sequence[Query],
        decoding: DecodingConfig,
        *,
        nbest: int = 1,
        advance: Advance | None = None,
    ) -> list[list[Hypothesis]]:
        """Return the `nbest` best hypotheses of each query, or fewer, the best first.

        Samples are in the order of their draws. Raises UserError if the model predicts NaN.
        """
        results: list[list[Hypothesis]] = [[] for _ in queries]
        width = nbest if decoding.sample else decoding.beam
        lens = [(len(query.source) + 1) * width for query in queries]
        for indices in batches(lens, decoding.batch_tokens):
            batch = [queries[index] for index in indices]
            try:
                found = self.search_batch(batch, decoding, nbest)
            except FloatingPointError:
                raise UserError(not_a_number(self.name)) from None
            for index, hypotheses in zip(indices, found, strict=True):
                results[index] = hypotheses
            if advance:
                advance(len(batch), sum(len(each[0].tokens) + 1 for each in found if each))
        return results

    @torch.inference_mode()
    def search_batch(
        self, queries: Sequence[Query], decoding: DecodingConfig, nbest: int = 1
    ) -> list[list[Hypothesis]]:
        """Search one batch; raises FloatingPointError for NaN."""
        vocabulary, device = self.tokenizer.target, self.model.device
        # Samples and diverse groups are searched as sentences of their own.
        copies = nbest if decoding.sample else decoding.diverse_groups
        beam = 1 if decoding.sample else decoding.beam // copies
        covered = decoding.coverage_penalty > 0
        state = self._start([query.source for query in queries], self.heads if covered else None)
        if copies > 1:
            state.select_sentences(
                torch.arange(len(queries), device=device).repeat_interleave(copies)
            )
        repeated = [query for query in queries for _ in range(copies)]
        found = beam_search(
            self.step,
            state,
            beam=beam,
            bos_id=vocabulary.bos_id,
            eos_id=vocabulary.eos_id,
            max_lens=torch.tensor([self._max_len(q, decoding) for q in repeated], device=device),
            penalty=LengthPenalty(decoding.length_penalty, decoding.penalty_form),
            nbest=min(nbest, beam),
            rules=self._rules(repeated, decoding, copies),
            bonus=Coverage(state, decoding.coverage_penalty, beam) if covered else None,
            text_of=self._text_of,
        )
        groups = [found[i : i + copies] for i in range(0, len(found), copies)]
        if decoding.sample:  # in the order of the draws
            return [[sample for [sample] in group] for group in groups]
        return [self._merged(group, nbest) for group in groups]

    def _text_of(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.target.decode([tokens])[0]

    def _merged(self, groups: list[list[Hypothesis]], nbest: int) -> list[Hypothesis]:
        """Return `nbest` hypotheses with different texts, taken from each group in turn, sorted."""
        if len(groups) == 1:
            return groups[0]
        taken: dict[str, Hypothesis] = {}
        for rank in range(max(map(len, groups))):
            for hypothesis in (group[rank] for group in groups if rank < len(group)):
                taken.setdefault(self._text_of(hypothesis.tokens), hypothesis)
        return sorted([*taken.values()][:nbest], key=lambda hypothesis: -hypothesis.score)

    def _start(self, sources: list[Sequence[int]], heads: AttentionHeads | None) -> Any:
        device = self.model.device
        rows = [np.array(source, dtype=np.int32) for source in sources]
        source = pack(end_rows(rows, self.tokenizer.source))
        with timed("encoding", len(source.ids), device):
            return self.model.start(source.to(device), heads)

    def _max_len(self, query: Query, decoding: DecodingConfig) -> int:
        terms = sum(len(tokens) for _, tokens in self._required(query))
        needed = max(decoding.min_length, len(query.prefix) + terms)
        return max_target_tokens(query, decoding, needed, self.max_target_len)

    def _required(self, query: Query) -> list[tuple[Term, list[int]]]:
        terms = [term for term in query.terms if term.required]
        if not terms:
            return []
        tokens = self.tokenizer.target.encode([term.text for term in terms])
        return list(zip(terms, tokens, strict=True))

    def _rules(self, queries: list[Query], decoding: DecodingConfig, copies: int) -> list[Rule]:
        eos_id = self.tokenizer.target.eos_id
        rules: list[Rule] = []
        if decoding.min_length:
            rules.append(MinLength(decoding.min_length, eos_id))
        if decoding.no_repeat_ngram:
            rules.append(NoRepeatNgram(decoding.no_repeat_ngram))
        has_alternatives = not decoding.sample and decoding.beam > copies
        forbidden = [_forbidden(query, wait=has_alternatives) for query in queries]
        if any(forbidden):
            rules.append(Forbidden(forbidden, self.texts, eos_id))
        required = [self._required(query) for query in queries]
        if any(required):
            rules.append(Required(required, self.texts, eos_id))
        if decoding.diverse_groups > 1:
            rules.append(DiverseGroups(copies, decoding.diversity))
        if decoding.sample:
            sampling = Sampling(decoding.temperature, decoding.top_k, decoding.top_p)
            seeds = [[decoding.seed, *q.seed, i % copies] for i, q in enumerate(queries)]
            rules.append(Draw(sampling, seeds))
        if any(query.prefix for query in queries):
            rules = [Prefix([query.prefix for query in queries], rules)]
        return rules

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """Return the next token's log-probabilities, (R, V), after the newest tokens, (R,)."""
        with timed("search", len(tokens), tokens.device):
            log_probs = self.model.step(tokens, state)
            log_probs[:, self._suppressed_ids] = -torch.inf
        return log_probs

    def score(
        self,
        pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
        decoding: DecodingConfig,
        heads: AttentionHeads | None = None,
    ) -> list[Scored]:
        """Return the log-probabilities of given targets, as ids without the end symbol.

        heads: also return their attention.
        """
        results: dict[int, Scored] = {}
        for indices in batches([max(map(len, p)) + 1 for p in pairs], decoding.batch_tokens):
            batch = [pairs[index] for index in indices]
            results |= zip(indices, self._score_batch(batch, decoding, heads), strict=True)
        return [results[i] for i in range(len(pairs))]

    @torch.inference_mode()
    def _score_batch(
        self,
        pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
        decoding: DecodingConfig,
        heads: AttentionHeads | None = None,
    ) -> list[Scored]:
        """Score one batch."""
        covered = decoding.coverage_penalty > 0
        log_probs, layers = self.force(pairs, need_weights=bool(heads) or covered)
        rows = log_probs.double().cpu()
        penalty = LengthPenalty(decoding.length_penalty, decoding.penalty_form)
        scored = []
        for row, (source, ids) in enumerate(pairs):
            values, size = rows[row, : len(ids) + 1].tolist(), len(source) + 1
            score = sum(values) / penalty(len(values))
            weights = None
            if layers:
                weights = (heads or self.heads).weights([x[row : row + 1] for x in layers])[0]
                weights = weights[:, :size].cpu()
                if covered:
                    reached = weights[: len(values), : size - 1].sum(dim=0)
                    score += decoding.coverage_penalty * coverage_of(reached)
                shift = (heads or self.heads).shift
                weights = weights[shift : shift + len(ids)]
            scored.append(Scored(Hypothesis(list(ids), sum(values), score), values, weights))
        return scored

    @torch.inference_mode()
    def force(
        self,
        pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
        *,
        need_weights: bool = False,
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the log-probability of each token of given targets and their ends, (B, T).

        If wanted, also each layer's weights of the cross-attention, (B, H, T, S).
        """
        target, device = self.tokenizer.target, self.model.device
        for _, ids in pairs:
            if len(ids) + 1 > self.max_target_len:
                raise UserError(
                    f"a target of {len(ids)} tokens exceeds the {self.max_target_len - 1} of "
                    "this model's learned positions"
                )
        state = self._start([source for source, _ in pairs], None)
        width = max(len(ids) for _, ids in pairs) + 1
        labels = torch.full((len(pairs), width), target.eos_id)
        for row, (_, ids) in enumerate(pairs):
            labels[row, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
        starts = torch.full((len(pairs), 1), target.bos_id)
        inputs = torch.cat([starts, labels[:, :-1]], dim=1).to(device)
        with timed("scoring", inputs.numel(), device):
            return self.model.score(inputs, labels.to(device), state, need_weights=need_weights)


def max_source_tokens(config: Config) -> int:
    """Return the maximum number of tokens of a source, without the end symbol."""
    return config.data.clean.max_len or DEFAULT_LIMIT


def max_target_tokens(query: Query, decoding: DecodingConfig, needed: int, limit: int) -> int:
    """Return the maximum number of tokens of a translation, with the end symbol.

    needed: without the end symbol, if more than the recipe allows. limit: the model's.
    """
    # 0.29 * 100 is 28.999999999999996.
    length = math.floor(decoding.max_factor * len(query.source) + 1e-9) + decoding.max_extra
    return min(max(length, needed) + 1, limit)


def _forbidden(query: Query, *, wait: bool) -> list[tuple[Term, bool]]:
    """Return the forbidden terms, with whether to wait: always for a part of a required term."""
    required = [term.text for term in query.terms if term.required]
    return [
        (term, wait or any(term.text in text for text in required))
        for term in query.terms
        if not term.required
    ]


class Coverage:
    """The coverage penalty of a hypothesis that ends (Wu et al. 2016, equation 14).

    The weight times the sum over the source tokens, without the end symbol, of
    log(min(attention, 1)), where the attention is summed over the target.
    """

    def __init__(self, state: DecoderState | EnsembleState, weight: float, beam: int) -> None:
        self.state, self.weight, self.beam = state, weight, beam

    def __call__(self, row: int) -> float:
        """Return the penalty, at most 0, of a row of the search."""
        assert self.state.coverage is not None
        size = int(self.state.source_mask[row // self.beam].sum()) - 1
        return self.weight * coverage_of(self.state.coverage[row, :size])


def coverage_of(attention: Tensor) -> float:
    """Return the sum of log(min(attention, 1)) over source tokens, (S,)."""
    return float(attention.clamp(1e-10, 1.0).log().sum())


def batches(lens: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield batches of indices, longest first, of at most `batch_tokens` tokens with padding."""
    batch: list[int] = []
    for index in sorted(range(len(lens)), key=lambda index: -lens[index]):
        if batch and (len(batch) + 1) * lens[batch[0]] > batch_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
