"""Search and scoring with CTranslate2 (https://github.com/OpenNMT/CTranslate2)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seq2seq.config import DecodingConfig
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.engine import CPU_BATCH, Engine, Hypothesis, Pairs, Source
from seq2seq.errors import UserError
from seq2seq.machine.threads import fixed_threads, usable_cores

UNSUPPORTED = ("sample", "temperature", "top_k", "top_p", "seed")
"""Keys of the section `decoding` that CTranslate2 does not support: all are for sampling."""
SCORING_TOKENS = 256
"""Maximum tokens in a scoring batch. Larger batches need more memory for logits, and more time."""
SEARCH_SIZE = 2_500
"""Number of requests that are searched together. Its own threads search, so that Python's can
prepare others. In larger parts, a batch has sentences of more similar length."""
PAIRS_PER_CALL = 1_000
"""Number of pairs in a call of CTranslate2. Ctrl-C takes effect after the call."""


def _has_rules(decoding: DecodingConfig) -> bool:
    """Return whether the search normalises probabilities over allowed tokens only."""
    return bool(decoding.min_length or decoding.no_repeat_ngram)


class CTranslate2Engine(Engine):
    """Searches and scores with a model in CTranslate2's format."""

    has_exact_scores = False
    search_size = SEARCH_SIZE

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
        # For small matrices, batches in parallel are faster than threads within a batch.
        self.workers = fixed_threads() or usable_cores() if kind == "cpu" else 1
        # Larger batches are faster in fp32, but slower in int8.
        self._greedy_batch = CPU_BATCH * 3 // 2 if compute_type == "float32" else CPU_BATCH
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

    def _max_sentences(self, count: int, width: int) -> int:
        limit = self._greedy_batch if width == 1 else CPU_BATCH * 3 // 4
        # Use all workers even for few sources.
        return min(limit, max(8, math.ceil(count / (4 * self.workers))))

    def _search(
        self, batches: Sequence[Sequence[Source]], decoding: DecodingConfig, nbest: int
    ) -> Iterator[Iterable[list[Hypothesis]]]:
        queue: deque[tuple[Sequence[Source], list[Any]]] = deque()
        for batch in batches:
            queue.append((batch, self._submit(batch, decoding, nbest)))
            if len(queue) > 2 * self.workers:  # Ctrl-C takes effect after all queued batches
                yield self._collect(*queue.popleft(), decoding)
        for batch, results in queue:
            yield self._collect(batch, results, decoding)

    def _submit(self, sources: Sequence[Source], decoding: DecodingConfig, nbest: int) -> list[Any]:
        # CTranslate2 has one maximum length per batch: take the largest of the sources.
        limit = max(self.max_len(source, decoding) for source in sources)
        first = self.language_first
        prefixes = [[*source.pieces[:first], *source.prefix] for source in sources]
        has_prefix = any(source.prefix for source in sources)
        rescored = decoding.penalty_form == "wu" or _has_rules(decoding) or has_prefix
        several = decoding.beam > 1 and (nbest > 1 or rescored)
        return self._translator.translate_batch(
            [source.pieces[first:] for source in sources],
            prefixes if any(prefixes) else None,
            asynchronous=True,
            beam_size=decoding.beam,
            patience=decoding.patience,
            num_hypotheses=int(decoding.beam * decoding.patience) if several else 1,
            return_scores=several,
            length_penalty=decoding.length_penalty or 1e-9,  # 0 changes the stopping criterion
            no_repeat_ngram_size=decoding.no_repeat_ngram,
            disable_unk=True,
            max_input_length=0,
            min_decoding_length=min(decoding.min_length, limit - 1),
            max_decoding_length=limit - 1 + first,
        )

    def _collect(
        self, sources: Sequence[Source], results: Sequence[Any], decoding: DecodingConfig
    ) -> Iterator[list[Hypothesis]]:
        """Wait for the hypotheses; repeat the search of a source that exceeds its limit.

        In a batch, a hypothesis may be longer than its source's limit, or lack the end symbol at
        the limit. Its score is then too high. The scores of CTranslate2 also omit prefixes, and
        rules change their normalisation. In these cases the log-probability is unknown.
        """
        for source, pending in zip(sources, results, strict=True):
            result, first = pending.result(), self.language_first
            longest = max(map(len, result.hypotheses)) - first
            limit = self.max_len(source, decoding) - 1
            unfinished = longest == limit and decoding.beam > 1 and len(result.hypotheses) == 1
            if longest > limit or unfinished:
                [repeated] = self._submit([source], decoding, decoding.beam)
                result = repeated.result()
            is_known = longest < limit and not source.prefix and not _has_rules(decoding)
            scores = result.scores if is_known else ()
            yield [
                Hypothesis(
                    pieces[first:],
                    None if score is None else score * (len(pieces) + 1) ** decoding.length_penalty,
                )
                for pieces, score in zip_longest(result.hypotheses, scores)
            ]

    def _log_probs(self, pairs: Pairs, decoding: DecodingConfig) -> list[list[float]]:
        size = min(SCORING_TOKENS, decoding.batch_tokens or self.batch_tokens)
        results = self._with_targets(
            self._translator.score_batch, pairs, batch_type="tokens", max_batch_size=size
        )
        return [list(result.log_probs[self.language_first :]) for result in results]

    def attention(self, pairs: Pairs, decoding: DecodingConfig) -> list[NDArray[np.float32]]:
        first = self.language_first
        # Greedy search with the targets as prefixes: the attention that beam search returns is not
        # always the attention of the returned hypothesis.
        results = self._with_targets(
            self._translator.translate_batch,
            pairs,
            beam_size=1,
            return_attention=True,
            min_decoding_length=0,
            max_decoding_length=max((len(target) for _, target in pairs), default=1) + first,
            max_batch_size=CPU_BATCH,
        )
        return [
            self.with_language(np.array(result.attention[0][first:])[: len(target)], len(source))
            for result, (source, target) in zip(results, pairs, strict=True)
        ]

    def _with_targets(
        self, submit: Callable[..., list[Any]], pairs: Pairs, **options: Any
    ) -> Iterator[Any]:
        """Yield a result for each pair, by teacher forcing; submit: a method of CTranslate2."""
        first = self.language_first
        for start in range(0, len(pairs), PAIRS_PER_CALL):
            part = pairs[start : start + PAIRS_PER_CALL]
            sources = [source[first:] for source, _ in part]
            targets = [[*source[:first], *target] for source, target in part]
            yield from submit(sources, targets, max_input_length=0, **options)
