"""Search and scoring with CTranslate2 (OpenNMT/CTranslate2 on GitHub)."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from seq2seq.config import DecodingConfig
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.engine import SENTENCES, Advance, Engine, Pairs, batches
from seq2seq.decoding.hypothesis import Hypothesis, LengthPenalty
from seq2seq.decoding.segments import Segment
from seq2seq.errors import UserError
from seq2seq.machine.threads import fixed_threads, usable_cores

T = TypeVar("T")
MISSING = ("sample", "temperature", "top_k", "top_p", "seed")
"""Keys of the section `decoding` that CTranslate2 does not obey."""
SCORED_TOKENS = 256
"""Number of tokens that are scored at once: more take more memory for their logits, and longer."""
FORCED_PAIRS = 1_000
"""Number of pairs in a forced pass after which Ctrl-C ends it."""


def missing_options(decoding: DecodingConfig, *, terms: bool) -> list[str]:
    """Return the options of a search that CTranslate2 does not have."""
    default = DecodingConfig()
    changed = [key for key in MISSING if getattr(decoding, key) != getattr(default, key)]
    return [f"`{key}`" for key in changed] + (["terms and glossaries"] if terms else [])


def _ahead(items: Iterable[T], count: int) -> Iterator[T]:
    """Yield items when `count` more have been taken, or there are no more."""
    taken: deque[T] = deque()
    for item in items:
        taken.append(item)
        if len(taken) > count:
            yield taken.popleft()
    yield from taken


def _await(result: Any) -> None:
    """Wait for a result, which Ctrl-C interrupts: it does not interrupt `result.result()`."""
    start = time.monotonic()
    while not result.done():
        # Rarely: a thread of the search has to make room.
        time.sleep(min(max((time.monotonic() - start) / 10, 1e-4), 0.02))


def _forced(submit: Callable[..., list[Any]], pairs: Pairs, **options: Any) -> Iterator[Any]:
    """Yield the results of a forced pass over pairs; submit: a method of CTranslate2."""
    for start in range(0, len(pairs), FORCED_PAIRS):
        sources, targets = zip(*pairs[start : start + FORCED_PAIRS], strict=True)
        results = submit(sources, targets, asynchronous=True, max_input_length=0, **options)
        _await(results[-1])
        yield from (result.result() for result in results)


def _has_rules(decoding: DecodingConfig) -> bool:
    """Return whether the search normalises over fewer tokens than the model."""
    return bool(decoding.min_length or decoding.no_repeat_ngram)


def _alpha(decoding: DecodingConfig) -> float:
    """Return the length penalty of the search: with 0 CTranslate2 ends it by another rule."""
    return decoding.length_penalty or 1e-9


def _all_hypotheses(decoding: DecodingConfig) -> int:
    """Return the number of hypotheses that a search finds."""
    return 1 if decoding.beam == 1 else int(decoding.beam * decoding.patience)


class CTranslate2Engine(Engine):
    """Searches and scores pieces of text with a model in CTranslate2's form."""

    def __init__(
        self,
        folder: Path,
        tokenizer: Tokenizer,
        max_target_len: int,
        *,
        device: str = "cpu",
        compute_type: str = "default",
        name: str = "the model",
    ) -> None:
        import ctranslate2

        super().__init__(tokenizer, max_target_len, name)
        kind, _, index = device.partition(":")
        # Small products gain more from batches side by side than from threads.
        self.workers = fixed_threads() or usable_cores() if kind == "cpu" else 1
        try:
            self._translator = ctranslate2.Translator(
                str(folder),
                kind,
                device_index=int(index or 0),
                compute_type=compute_type,
                inter_threads=self.workers,
                intra_threads=1,
                max_queued_batches=-1,
            )
        except (RuntimeError, ValueError) as error:
            raise UserError(f"CTranslate2 cannot load {folder}: {error}") from None

    def search(
        self,
        blocks: Iterable[Sequence[Segment]],
        decoding: DecodingConfig,
        *,
        nbest: int = 1,
        scores: bool = True,
        advance: Advance | None = None,
    ) -> Iterator[list[list[Hypothesis]]]:
        """Search ahead: later batches are searched while the results of a batch are awaited.

        The scores are made by a forced pass: those of the search leave out prefixes, and the end of
        a hypothesis of the maximum length.
        """
        rules = decoding.penalty_form == "wu" or _has_rules(decoding)

        def started() -> Iterator[tuple[Sequence[Segment], list[int], list[Any]]]:
            """Start the search of each batch; an empty batch ends a block."""
            for segments in blocks:
                ranked = nbest > 1 or rules or any(segment.prefix for segment in segments)
                count = _all_hypotheses(decoding) if ranked else 1
                for indices in self._batches(segments, decoding):
                    batch = [segments[i] for i in indices]
                    yield segments, indices, self._submit(batch, decoding, count)
                yield segments, [], []

        found: dict[int, list[Hypothesis]] = {}
        # Few batches: Ctrl-C waits until they are searched.
        for segments, indices, results in _ahead(started(), 2 * self.workers):
            if len(results) > 1:
                _await(results[-1])
            for i, result in zip(indices, results, strict=True):
                found[i] = self._hypotheses(segments[i], result.result(), decoding)
            if advance and indices:
                advance(len(indices))
            if not indices:
                # Where nothing but the end symbol is allowed, there was nothing to search.
                whole = [found.get(i, [Hypothesis([])]) for i in range(len(segments))]
                yield self._ranked(segments, whole, decoding, nbest, scores=scores)
                found = {}

    def _batches(
        self, segments: Sequence[Segment], decoding: DecodingConfig
    ) -> Iterator[list[int]]:
        """Yield batches of segments whose prefixes have one length.

        Where they differ, CTranslate2 fills the beam of the longer ones with equal hypotheses.
        """
        groups: dict[int, list[int]] = defaultdict(list)
        for i, segment in enumerate(segments):
            if self.max_len(segment, decoding) > 1:
                groups[len(segment.prefix)].append(i)
        most = SENTENCES if decoding.beam == 1 else SENTENCES * 3 // 4
        # Few segments are shared by the workers, too.
        most = min(most, max(8, math.ceil(len(segments) / (4 * self.workers))))
        for group in groups.values():
            lens = [(len(segments[i].source) + 1) * decoding.beam for i in group]
            for batch in batches(lens, decoding.batch_tokens, most):
                yield [group[i] for i in batch]

    def _submit(
        self, segments: Sequence[Segment], decoding: DecodingConfig, count: int
    ) -> list[Any]:
        """Start the search of a batch; return what waits for the result of each segment.

        A batch has one maximum length: the largest of its segments. count: number of hypotheses.
        """
        limit = max(self.max_len(segment, decoding) for segment in segments)
        prefixes = [segment.prefix for segment in segments]
        return self._translator.translate_batch(
            [segment.source for segment in segments],
            prefixes if any(prefixes) else None,
            asynchronous=True,
            beam_size=decoding.beam,
            patience=decoding.patience,
            num_hypotheses=count,
            return_scores=count > 1,
            length_penalty=_alpha(decoding),
            no_repeat_ngram_size=decoding.no_repeat_ngram,
            disable_unk=True,
            max_input_length=0,
            min_decoding_length=min(decoding.min_length, limit - 1),
            max_decoding_length=limit - 1,
        )

    def _hypotheses(
        self, segment: Segment, result: Any, decoding: DecodingConfig
    ) -> list[Hypothesis]:
        """Return the hypotheses of a segment, by a second search if need be.

        A hypothesis may be longer than its own limit, or have no end symbol at its limit: it then
        has a higher score in the search than it deserves.
        """
        longest, most = max(map(len, result.hypotheses)), self.max_len(segment, decoding) - 1
        unfinished = longest == most and decoding.beam > 1 and len(result.hypotheses) == 1
        if longest > most or unfinished:
            [again] = self._submit([segment], decoding, _all_hypotheses(decoding))
            result = again.result()
        found = [Hypothesis(pieces) for pieces in result.hypotheses]
        ruled = bool(segment.prefix) or _has_rules(decoding)
        if len(found) > 1 and longest < most and not ruled:
            penalty = LengthPenalty(decoding.length_penalty, decoding.penalty_form)
            for each, score in zip(found, result.scores, strict=True):
                length = len(each.pieces) + 1
                each.log_prob = score * length ** _alpha(decoding)
                each.score = each.log_prob / penalty(length)
        return found

    def _ranked(
        self,
        segments: Sequence[Segment],
        found: Sequence[list[Hypothesis]],
        decoding: DecodingConfig,
        nbest: int,
        *,
        scores: bool,
    ) -> list[list[Hypothesis]]:
        """Return the best hypotheses of each segment, ranked by their scores if there are several.

        Where the search's own scores do not serve, by forced ones: it leaves out prefixes, and
        normalises over the tokens that a minimum length or blocked n-grams leave.
        """
        forced = [
            (segment.source, own)
            for segment, own in zip(segments, found, strict=True)
            if scores or (len(own) > 1 and math.isnan(own[0].score))
        ]
        pairs = [(source, each.pieces) for source, own in forced for each in own]
        scored = iter(self.score(pairs, decoding))
        for _, own in forced:
            own[:] = [next(scored) for _ in own]
        return [self.best(sorted(own, key=lambda each: -each.score), nbest) for own in found]

    def log_probs(self, pairs: Pairs, decoding: DecodingConfig) -> list[list[float]]:
        most = min(SCORED_TOKENS, decoding.batch_tokens)
        results = _forced(
            self._translator.score_batch, pairs, batch_type="tokens", max_batch_size=most
        )
        return [list(result.log_probs) for result in results]

    def attention(self, pairs: Pairs, decoding: DecodingConfig) -> list[NDArray[np.float32]]:
        # The targets are prefixes: with a beam, CTranslate2 does not return the attention that led
        # to a hypothesis.
        found = [np.zeros((0, len(source)), dtype=np.float32) for source, _ in pairs]
        given = [i for i, (_, target) in enumerate(pairs) if target]
        results = _forced(
            self._translator.translate_batch,
            [pairs[i] for i in given],
            beam_size=1,
            return_attention=True,
            min_decoding_length=0,
            max_decoding_length=max((len(pairs[i][1]) for i in given), default=1),
            max_batch_size=SENTENCES,
        )
        for i, result in zip(given, results, strict=True):
            rows = result.attention[0][: len(pairs[i][1])]
            found[i] = np.array(rows, dtype=np.float32)
        return found
