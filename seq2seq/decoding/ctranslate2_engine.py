"""Search and scoring with CTranslate2 (OpenNMT/CTranslate2 on GitHub)."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seq2seq.config import DecodingConfig
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.hypothesis import (
    Advance,
    Hypothesis,
    LengthPenalty,
    Pairs,
    first_of_each_text,
)
from seq2seq.decoding.lengths import SENTENCES, batches, max_target_tokens
from seq2seq.decoding.segments import Segment
from seq2seq.errors import UserError, not_a_number
from seq2seq.machine.threads import fixed_threads, usable_cores

OBEYED = frozenset({
    "beam", "length_penalty", "penalty_form", "patience", "min_length", "max_factor", "max_extra",
    "no_repeat_ngram", "batch_tokens", "precision", "validation_beam",
})  # fmt: skip
"""Keys of the section `decoding` that CTranslate2 obeys, or that do not change its result."""
SCORED_TOKENS = 256
"""Number of tokens that are scored at once: more take more memory for their logits, and longer."""
FORCED_PAIRS = 1_000
"""Number of pairs in a forced pass after which Ctrl-C ends it."""


def missing_options(decoding: DecodingConfig, *, terms: bool) -> list[str]:
    """Return the options of a search that CTranslate2 does not have."""
    default = DecodingConfig()
    found = [
        f"`{key}`"
        for key, value in vars(decoding).items()
        if key not in OBEYED and value != getattr(default, key)
    ]
    return found + (["terms and glossaries"] if terms else [])


@dataclass
class _Block:
    """Segments that are searched together, and what has been found so far."""

    segments: Sequence[Segment]
    found: list[list[Hypothesis]]
    left: int = 0
    """Number of segments whose search has not ended."""


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


def _penalties(decoding: DecodingConfig) -> tuple[LengthPenalty, LengthPenalty]:
    """Return the recipe's length penalty, and CTranslate2's."""
    ours = LengthPenalty(decoding.length_penalty, decoding.penalty_form)
    # With a penalty of 0 CTranslate2 ends a search by another rule.
    return ours, LengthPenalty(decoding.length_penalty or 1e-9, "power")


def _all_hypotheses(decoding: DecodingConfig) -> int:
    """Return the number of hypotheses that a search finds."""
    return 1 if decoding.beam == 1 else int(decoding.beam * decoding.patience)


class CTranslate2Engine:
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
        """max_target_len: number of positions of the model. name: for errors."""
        import ctranslate2

        _, self.target = tokenizer.sentence_pieces
        self.max_target_len, self.name = max_target_len, name
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
        """Yield, block by block, the `nbest` best hypotheses of each segment, or fewer.

        The best come first. The next block is searched while results of a block are awaited.
        scores: with log-probabilities and scores, by a forced pass: the scores of the search leave
        out prefixes, and the end of a hypothesis of the maximum length.
        """
        rules = decoding.penalty_form == "wu" or _has_rules(decoding)
        pending: deque[tuple[_Block, list[int], list[Any]]] = deque()
        unfinished: deque[_Block] = deque()

        def collect() -> None:
            block, indices, results = pending.popleft()
            if len(results) > 1:
                _await(results[-1])
            for i, result in zip(indices, results, strict=True):
                block.found[i] = self._hypotheses(block.segments[i], result.result(), decoding)
            block.left -= len(indices)
            if advance:
                advance(len(indices))

        for segments in blocks:
            # Where nothing but the end symbol is allowed, there is nothing to search.
            block = _Block(segments, [[Hypothesis([])] for _ in segments])
            unfinished.append(block)
            ranked = nbest > 1 or rules or any(segment.prefix for segment in segments)
            count = _all_hypotheses(decoding) if ranked else 1
            for indices in self._batches(segments, decoding):
                results = self._submit([segments[i] for i in indices], decoding, count)
                pending.append((block, indices, results))
                block.left += len(indices)
                # A short queue: Ctrl-C waits until it is empty.
                while len(pending) > 2 * self.workers:
                    collect()
            while unfinished and not unfinished[0].left:
                yield self._finished(unfinished.popleft(), decoding, nbest, scores=scores)
        while unfinished:
            while unfinished[0].left:
                collect()
            yield self._finished(unfinished.popleft(), decoding, nbest, scores=scores)

    def _max_len(self, segment: Segment, decoding: DecodingConfig) -> int:
        source, prefix = len(segment.source), len(segment.prefix)
        return max_target_tokens(source, prefix, decoding, self.max_target_len)

    def _batches(
        self, segments: Sequence[Segment], decoding: DecodingConfig
    ) -> Iterator[list[int]]:
        """Yield batches of segments whose prefixes have one length.

        Where they differ, CTranslate2 fills the beam of the longer ones with equal hypotheses.
        """
        groups: dict[int, list[int]] = defaultdict(list)
        for i, segment in enumerate(segments):
            if self._max_len(segment, decoding) > 1:
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
        limit = max(self._max_len(segment, decoding) for segment in segments)
        prefixes = [segment.prefix for segment in segments]
        return self._translator.translate_batch(
            [segment.source for segment in segments],
            prefixes if any(prefixes) else None,
            asynchronous=True,
            beam_size=decoding.beam,
            patience=decoding.patience,
            num_hypotheses=count,
            return_scores=count > 1,
            length_penalty=_penalties(decoding)[1].alpha,
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
        longest, most = max(map(len, result.hypotheses)), self._max_len(segment, decoding) - 1
        unfinished = longest == most and decoding.beam > 1 and len(result.hypotheses) == 1
        if longest > most or unfinished:
            [again] = self._submit([segment], decoding, _all_hypotheses(decoding))
            result = again.result()
        found = [Hypothesis(pieces) for pieces in result.hypotheses]
        ruled = bool(segment.prefix) or _has_rules(decoding)
        if len(found) > 1 and longest < most and not ruled:
            ours, theirs = _penalties(decoding)
            for each, score in zip(found, result.scores, strict=True):
                each.log_prob = score * theirs(len(each.pieces) + 1)
                each.score = each.log_prob / ours(len(each.pieces) + 1)
        return found

    def _finished(
        self, block: _Block, decoding: DecodingConfig, nbest: int, *, scores: bool
    ) -> list[list[Hypothesis]]:
        """Return the best hypotheses of each segment, ranked by their scores if there are several.

        Where the search's own scores do not serve, by forced ones: it leaves out prefixes, and
        normalises over the tokens that a minimum length or blocked n-grams leave.
        """
        forced = [
            (segment.source, own)
            for segment, own in zip(block.segments, block.found, strict=True)
            if scores or (len(own) > 1 and math.isnan(own[0].score))
        ]
        pairs = [(source, each.pieces) for source, own in forced for each in own]
        scored = iter(self.score(pairs, decoding))
        for _, own in forced:
            own[:] = [next(scored) for _ in own]
        for own in block.found:
            own.sort(key=lambda each: -each.score)
            if nbest > 1:
                texts = self.target.decode_pieces([each.pieces for each in own])
                own[:] = first_of_each_text(own, texts)
            del own[nbest:]
        return block.found

    def score(self, pairs: Pairs, decoding: DecodingConfig) -> list[Hypothesis]:
        """Return given targets with their log-probabilities; pairs: pieces of source and target."""
        options = {"max_batch_size": min(SCORED_TOKENS, decoding.batch_tokens)}
        found = _forced(self._translator.score_batch, pairs, batch_type="tokens", **options)
        penalty, _ = _penalties(decoding)
        scored = []
        for (_, target), result in zip(pairs, found, strict=True):
            log_probs = list(result.log_probs)
            total = sum(log_probs)
            if math.isnan(total):
                raise UserError(not_a_number(self.name))
            score = total / penalty(len(log_probs))
            scored.append(Hypothesis(list(target), total, score, log_probs=log_probs))
        return scored

    def attention(self, pairs: Pairs, decoding: DecodingConfig) -> list[NDArray[np.float32]]:
        """Return the cross-attention of given targets, (target, source) pieces each.

        The targets are prefixes: with a beam, CTranslate2 does not return the attention that led
        to a hypothesis.
        """
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
