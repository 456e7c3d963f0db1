"""Search and scoring with CTranslate2 (OpenNMT/CTranslate2 on GitHub)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seq2seq.config import DecodingConfig
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.engine import SENTENCES, Engine, Pairs
from seq2seq.decoding.hypothesis import Hypothesis, LengthPenalty
from seq2seq.decoding.segments import Segment
from seq2seq.errors import UserError
from seq2seq.machine.threads import fixed_threads, usable_cores

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
    """Return whether a search normalises over fewer tokens than the model."""
    return bool(decoding.min_length or decoding.no_repeat_ngram)


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
        self.queue = 2 * self.workers  # not more: Ctrl-C waits until it is empty
        # Larger products are faster in fp32, and slower in int8.
        self._greedy_sentences = SENTENCES * 3 // 2 if compute_type == "float32" else SENTENCES
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

    def _most(self, count: int, decoding: DecodingConfig) -> int:
        most = self._greedy_sentences if decoding.beam == 1 else SENTENCES * 3 // 4
        # Few segments are shared by the workers, too.
        return min(most, max(8, math.ceil(count / (4 * self.workers))))

    def _submit(
        self, segments: Sequence[Segment], decoding: DecodingConfig, nbest: int
    ) -> list[Any]:
        # A batch has one maximum length: the largest of its segments.
        limit = max(self.max_len(segment, decoding) for segment in segments)
        prefixes = [segment.prefix for segment in segments]
        reranked = decoding.penalty_form == "wu" or _has_rules(decoding) or any(prefixes)
        several = decoding.beam > 1 and (nbest > 1 or reranked)
        return self._translator.translate_batch(
            [segment.source for segment in segments],
            prefixes if any(prefixes) else None,
            asynchronous=True,
            beam_size=decoding.beam,
            patience=decoding.patience,
            num_hypotheses=int(decoding.beam * decoding.patience) if several else 1,
            return_scores=several,
            length_penalty=decoding.length_penalty or 1e-9,  # with 0 a search ends otherwise
            no_repeat_ngram_size=decoding.no_repeat_ngram,
            disable_unk=True,
            max_input_length=0,
            min_decoding_length=min(decoding.min_length, limit - 1),
            max_decoding_length=limit - 1,
        )

    def _collect(
        self, segments: Sequence[Segment], results: Sequence[Any], decoding: DecodingConfig
    ) -> Iterator[list[Hypothesis]]:
        """Wait for the hypotheses; search again for a segment if need be.

        A hypothesis may be longer than its own limit, or have no end symbol at its limit: it then
        has a higher score in the search than it deserves. The scores of the search also leave out
        prefixes, and normalise over the tokens that rules leave: a forced pass makes others. They
        rank, and are too inexact to be shown.
        """
        if len(results) > 1:
            _await(results[-1])
        penalty = LengthPenalty(decoding.length_penalty, decoding.penalty_form)
        for segment, waiting in zip(segments, results, strict=True):
            result = waiting.result()
            longest, most = max(map(len, result.hypotheses)), self.max_len(segment, decoding) - 1
            unfinished = longest == most and decoding.beam > 1 and len(result.hypotheses) == 1
            if longest > most or unfinished:
                [again] = self._submit([segment], decoding, decoding.beam)
                result = again.result()
            found = [Hypothesis(pieces) for pieces in result.hypotheses]
            if longest < most and not segment.prefix and not _has_rules(decoding):
                for each, score in zip(found, result.scores, strict=False):
                    length = len(each.pieces) + 1
                    each.score = score * length**decoding.length_penalty / penalty(length)
            yield found

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
