"""Search and scoring of rows of token ids with a Transformer or an ensemble."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import zip_longest

import torch

from seq2seq.config import Config, DecodingConfig
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.beams import Beams, Hypothesis, LengthPenalty
from seq2seq.decoding.constraints import Forbidden, Required, Term, TokenTexts
from seq2seq.decoding.ensemble import Ensemble, EnsembleDecoder, coverage_of
from seq2seq.decoding.sampling import Sampler, Sampling
from seq2seq.decoding.search import (
    DiverseGroups,
    MinLength,
    NoRepeatNgram,
    Plan,
    Prefix,
    Rule,
    beam_search,
)
from seq2seq.decoding.segments import Segment
from seq2seq.errors import OptionError, UserError, not_a_number
from seq2seq.machine.workers import Waiting, WorkerError, in_workers
from seq2seq.model.cache import AttentionHeads
from seq2seq.model.transformer import Transformer

DEFAULT_LIMIT = 1_024
"""Maximum number of source tokens for a model trained without data.clean.max_len."""

MIN_SEGMENTS = 32
"""Number of segments for each process of a search: fewer are not worth starting it."""
CPU_ROWS = 64, 512
"""Number of hypotheses of a search on a CPU: with fewer at once the products are less efficient,
with more they are no faster."""

Advance = Callable[[int, int], None]
"""Called with the numbers of sentences and of target tokens of each finished batch."""


def default_heads(model: Transformer) -> AttentionHeads:
    """Return all heads of the last layer but one, whose attention follows the source best.

    (Garg et al. 2019.)
    """
    layer = max(0, model.config.decoder_layers - 2)
    return AttentionHeads(tuple((layer, head) for head in range(model.config.num_heads)))


class SearchEngine:
    """Searches and scores rows with a model or an ensemble."""

    def __init__(
        self,
        models: Sequence[Transformer],
        tokenizer: Tokenizer,
        configs: Sequence[Config],
        name: str = "the model",
    ) -> None:
        """configs: recipes of all models. name: for errors."""
        self.ensemble, self.tokenizer, self.name = Ensemble(models, tokenizer), tokenizer, name
        self.device = self.ensemble.device
        self.workers = 1
        """Number of processes that share the work of a search, on a CPU."""
        self.batch_invariant = True
        """Whether results do not depend on the batch. In int8 they do: each process has a fixed
        share then, so that two runs agree."""
        self.heads = default_heads(models[0])
        """Heads of the first model, for alignment and coverage."""
        learned = [each.model.context for each in configs if each.model.positions == "learned"]
        self.max_source_len = min(map(max_source_tokens, configs))
        self.max_target_len = min(learned, default=torch.iinfo(torch.int64).max)
        """Maximum number of target tokens, given by learned positions."""
        if self.device.type == "cpu":  # compiled here, before processes fork
            importlib.import_module("seq2seq.machine.kernels")

    @cached_property
    def texts(self) -> TokenTexts:
        """The texts of the target tokens."""
        return TokenTexts(self.tokenizer.target.token_bytes())

    def require_supported(self, decoding: DecodingConfig, *, terms: bool, alignment: bool) -> None:
        """Do nothing: there is no option that this engine does not have."""

    def search(
        self,
        segments: Sequence[Segment],
        decoding: DecodingConfig,
        *,
        nbest: int = 1,
        advance: Advance | None = None,
    ) -> list[list[Hypothesis]]:
        """Return the `nbest` best hypotheses of each segment, or fewer, the best first.

        Samples are in the order of their draws. Raises UserError if the model predicts NaN.
        """
        # Samples and diverse groups are searched as sentences of their own.
        copies = nbest if decoding.sample else decoding.diverse_groups
        beam = 1 if decoding.sample else decoding.beam // copies
        sizes = [(len(segment.source) + 1) * beam * copies for segment in segments]
        order = sorted(range(len(segments)), key=lambda index: -sizes[index])
        workers = max(1, min(self.workers, len(segments) // MIN_SEGMENTS))
        most = _max_sentences(sizes, workers, beam * copies, self.device)
        plan = Plan([sizes[index] for index in order], decoding.batch_tokens, most)
        is_shared = workers > 1 and self.batch_invariant
        shared = Waiting(len(order), shared=True) if is_shared else None
        batch = [segments[index] for index in order]
        repeated = [segment for segment in batch for _ in range(copies)]
        max_lens = [self.max_len(segment, decoding) for segment in repeated]
        rules = self._rules(repeated, decoding, copies)
        penalty = LengthPenalty(decoding.length_penalty, decoding.penalty_form)
        weight, target = decoding.coverage_penalty, self.tokenizer.target
        heads = self.heads if weight > 0 else None

        @torch.inference_mode()
        def work(worker: int) -> Iterator[tuple[int, list[list[Hypothesis]]]]:
            decoder = EnsembleDecoder(self.ensemble, batch, beam, copies, heads)
            beams = Beams(
                max_lens, beam, target.bos_id, target.eos_id, penalty, min(nbest, beam),
                decoding.lookahead, self._text_of, copies,
            )  # fmt: skip
            found = beam_search(
                decoder,
                beams,
                waiting=shared or Waiting(len(batch), first=worker, step=workers),
                plan=plan,
                rules=rules,
                bonus=(lambda: decoder.coverage_penalty(weight)) if weight > 0 else None,
            )
            groups: list[dict[int, list[Hypothesis]]] = [{} for _ in batch]
            for number, hypotheses in found:
                group = groups[number // copies]
                group[number % copies] = hypotheses
                if len(group) == copies:
                    yield number // copies, [group[copy] for copy in range(copies)]

        results: list[list[Hypothesis]] = [[] for _ in segments]
        try:
            for number, group in in_workers(work, workers) if workers > 1 else work(0):
                results[order[number]] = found = self._merged(group, decoding, nbest)
                if advance:
                    advance(1, len(found[0].tokens) + 1 if found else 0)
        except FloatingPointError:
            raise UserError(not_a_number(self.name)) from None
        except WorkerError as error:
            raise OptionError(
                f"a process of the search {error}; a lower `batch_tokens` takes less memory"
            ) from None
        return results

    def _merged(
        self, groups: list[list[Hypothesis]], decoding: DecodingConfig, nbest: int
    ) -> list[Hypothesis]:
        """Return the samples of a segment, or the best of its groups with different texts."""
        if decoding.sample or len(groups) == 1:
            return [each for group in groups for each in group]
        in_turn = [each for rank in zip_longest(*groups) for each in rank if each]
        best = different_texts(in_turn, self.tokenizer)[:nbest]
        return sorted(best, key=lambda hypothesis: -hypothesis.score)

    def _text_of(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.target.decode([tokens])[0]

    def max_len(self, segment: Segment, decoding: DecodingConfig) -> int:
        of_terms = sum(len(tokens) for _, tokens in self._required(segment))
        return max_target_tokens(segment, decoding, self.max_target_len, of_terms)

    def _required(self, segment: Segment) -> list[tuple[Term, list[int]]]:
        terms = [term for term in segment.terms if term.required]
        if not terms:
            return []
        tokens = self.tokenizer.target.encode([term.text for term in terms])
        return list(zip(terms, tokens, strict=True))

    def _rules(
        self, segments: Sequence[Segment], decoding: DecodingConfig, copies: int
    ) -> list[Rule]:
        eos_id = self.tokenizer.target.eos_id
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
            seeds = [[decoding.seed, *q.seed, i % copies] for i, q in enumerate(segments)]
            rules.append(Sampler(sampling, seeds))
        if any(segment.prefix for segment in segments):
            rules = [Prefix([segment.prefix for segment in segments], rules)]
        return rules

    @torch.inference_mode()
    def score(
        self,
        pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
        decoding: DecodingConfig,
        heads: AttentionHeads | None = None,
    ) -> list[Hypothesis]:
        """Return the log-probabilities of given targets, as ids without the end symbol.

        heads: also return their attention.
        """
        for _, ids in pairs:
            if len(ids) + 1 > self.max_target_len:
                raise UserError(
                    f"a target of {len(ids)} tokens exceeds the {self.max_target_len - 1} of "
                    "this model's learned positions"
                )
        needed = heads or (self.heads if decoding.coverage_penalty > 0 else None)
        penalty = LengthPenalty(decoding.length_penalty, decoding.penalty_form)
        results: dict[int, Hypothesis] = {}
        for indices in batches([max(map(len, p)) + 1 for p in pairs], decoding.batch_tokens):
            batch = [pairs[index] for index in indices]
            log_probs, layers = self.ensemble.force(batch, need_weights=needed is not None)
            rows = log_probs.cpu().double()
            for row, (index, (source, ids)) in enumerate(zip(indices, batch, strict=True)):
                values = rows[row, : len(ids) + 1].tolist()
                score, attention = sum(values) / penalty(len(values)), None
                if needed:
                    weights = needed.weights([each[row : row + 1] for each in layers])[0]
                    weights = weights[:, : len(source) + 1].cpu()
                    if decoding.coverage_penalty > 0:
                        reached = weights[: len(values), : len(source)].sum(dim=0)
                        score += decoding.coverage_penalty * float(coverage_of(reached))
                    attention = weights[needed.shift : needed.shift + len(ids)]
                results[index] = Hypothesis(
                    list(ids), sum(values), score, log_probs=values, attention=attention
                )
        return [results[i] for i in range(len(pairs))]


def different_texts(found: Sequence[Hypothesis], tokenizer: Tokenizer) -> list[Hypothesis]:
    """Return the first hypothesis of each text."""
    texts = tokenizer.target.decode([each.tokens for each in found])
    first: dict[str, Hypothesis] = {}
    for text, each in zip(texts, found, strict=True):
        first.setdefault(text, each)
    return list(first.values())


def _max_sentences(sizes: Sequence[int], workers: int, beam: int, device: torch.device) -> int:
    """Return the maximum number of sentences that each process searches at the same time.

    On a CPU a step takes the longer, the more there are; so many that the others are done when the
    longest one is, which may be the last that the search waits for.
    """
    if device.type != "cpu" or not sizes:
        return max(1, len(sizes))
    balanced = math.ceil(sum(sizes) / max(sizes) / workers)
    least, most = CPU_ROWS
    return max(1, least // beam, min(most // beam, balanced))


def max_source_tokens(config: Config) -> int:
    """Return the maximum number of tokens of a source, without the end symbol."""
    return config.pairs.clean.max_len or DEFAULT_LIMIT


def max_target_tokens(
    segment: Segment, decoding: DecodingConfig, limit: int, of_terms: int = 0
) -> int:
    """Return the maximum number of tokens of a translation, with the end symbol.

    limit: the model's. of_terms: number of tokens of the terms that must appear.
    """
    # 0.29 * 100 is 28.999999999999996.
    length = math.floor(decoding.max_factor * len(segment.source) + 1e-9) + decoding.max_extra
    needed = max(decoding.min_length, len(segment.prefix) + of_terms)
    return min(max(length, needed) + 1, limit)


def _forbidden(segment: Segment, *, wait: bool) -> list[tuple[Term, bool]]:
    """Return the forbidden terms, with whether to wait: always for a part of a required term."""
    required = [term.text for term in segment.terms if term.required]
    return [
        (term, wait or any(term.text in text for text in required))
        for term in segment.terms
        if not term.required
    ]


def batches(lens: Sequence[int], batch_tokens: int, most: int | None = None) -> Iterator[list[int]]:
    """Yield batches of indices, longest first, of at most `batch_tokens` tokens with padding.

    most: maximum number of indices.
    """
    batch: list[int] = []
    for index in sorted(range(len(lens)), key=lambda index: -lens[index]):
        full = len(batch) == most
        if batch and (full or (len(batch) + 1) * lens[batch[0]] > batch_tokens):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
