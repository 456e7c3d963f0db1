"""Translate lines of text in batches, including blank and very long lines."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seq2seq.config import Config, DecodingConfig, with_batch_tokens
from seq2seq.config.checks import check_bounds
from seq2seq.data.packing import end_rows, one_each
from seq2seq.data.streams import LINES_AT_ONCE
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.ensemble import Ensemble
from seq2seq.decoding.search import Hypothesis, LengthPenalty, beam_search, greedy_search
from seq2seq.errors import UserError, not_a_number
from seq2seq.machine.threads import timed
from seq2seq.model.directory import LoadedModel, load_model
from seq2seq.model.saved import find_model
from seq2seq.model.transformer import Transformer

DEFAULT_LIMIT = 1_024
"""Maximum number of source tokens for a model trained without data.clean.max_len."""

logger = logging.getLogger(__name__)

_SENTENCE_END = re.compile(r"(?<=[.!?;:。！？])\s+|(?<=[。！？])")
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class _Segment:
    """A line, or a part of a line that is too long."""

    line: int
    ids: list[int]
    separator: str
    """Text between this segment and the previous one."""


class Translator:
    """Translates text with a model; the command line is a thin wrapper around this."""

    def __init__(
        self,
        model: Transformer | Ensemble,
        tokenizer: Tokenizer,
        config: Config,
        decoding: DecodingConfig | None = None,
        tag: str | None = None,
        others: Sequence[Config] = (),
        name: str = "the model",
    ) -> None:
        """others: the recipes of the other models of an ensemble. name: for errors."""
        if tag is not None and not tokenizer.source.knows(tag):
            raise UserError(f"tag={tag!r} is not a symbol of this model's tokenizer")
        self.model, self.name = model, name
        self.tag = tag
        self.tokenizer = tokenizer
        self.decoding = decoding or config.decoding
        configs = (config, *others)
        self.max_source_len = min(each.data.clean.max_len or DEFAULT_LIMIT for each in configs)
        """Maximum number of source tokens."""
        learned = [each.model.context for each in configs if each.model.positions == "learned"]
        self._max_target_len = min(learned, default=torch.iinfo(torch.int64).max)
        """Maximum number of target tokens, given by learned positions."""
        target = tokenizer.target
        self._suppressed_ids = torch.tensor(
            [target.pad_id, target.bos_id, target.unk_id], device=model.device
        )

    @classmethod
    def load(
        cls,
        directory: str | Path,
        *,
        others: Sequence[str | Path] = (),
        checkpoint: str | None = None,
        beam: int | None = None,
        length_penalty: float | None = None,
        batch_tokens: int | None = None,
        tag: str | None = None,
        device: str | None = None,
    ) -> Translator:
        """Load a run's best model, or a model directory; options replace those of its recipe.

        others: more runs or model directories with the same tokenizer, to form an ensemble.
        batch_tokens: source tokens times beam width per batch.
        """
        loaded = load_model(find_model(Path(directory), checkpoint), device)
        model: Transformer | Ensemble = _require_transformer(loaded, directory)
        more = [load_model(find_model(Path(other), checkpoint), device) for other in others]
        if more:
            for other, one in zip(others, more, strict=True):
                if one.tokenizer.checksum != loaded.tokenizer.checksum:
                    raise UserError(f"{other} and {directory} have different tokenizers")
            pairs = zip([loaded, *more], [directory, *others], strict=True)
            model = Ensemble([_require_transformer(each, name) for each, name in pairs])
        decoding = with_batch_tokens(loaded.config, batch_tokens).decoding
        decoding = replace(
            decoding,
            beam=decoding.beam if beam is None else beam,
            length_penalty=decoding.length_penalty if length_penalty is None else length_penalty,
        )
        check_bounds(decoding, "decoding.")
        configs = [each.config for each in more]
        name = " with ".join(map(str, [directory, *others]))
        return cls(model, loaded.tokenizer, loaded.config, decoding, tag, configs, name)

    def translate(self, texts: Sequence[str]) -> list[str]:
        """Return one translation for each text, in order; that of a blank text is empty.

        The translator's tag, if any, is put before every text.
        """
        if isinstance(texts, str):
            raise TypeError("translate takes a list of texts; write translate([text])[0]")
        starts = range(0, len(texts), LINES_AT_ONCE)
        blocks = (texts[start : start + LINES_AT_ONCE] for start in starts)
        return [line for block in blocks for line in self._translate_block(block)]

    def _translate_block(self, texts: Sequence[str]) -> list[str]:
        segments = [
            segment for line, text in enumerate(texts) for segment in self._segments(line, text)
        ]
        best = self.search([segment.ids for segment in segments])
        decoded = self.tokenizer.target.decode([hypothesis.tokens for hypothesis in best])
        lines = [""] * len(texts)
        for segment, translation in zip(segments, decoded, strict=True):
            lines[segment.line] += segment.separator + translation
        return lines

    def _segments(self, line: int, text: str) -> list[_Segment]:
        parts = self.split(text)
        if len(parts) > 1:
            logger.warning(
                "a line of %d characters exceeds the maximum source length of %d tokens; "
                "translated in %d parts",
                len(text),
                self.max_source_len,
                len(parts),
            )
        return [
            _Segment(line, ids, separator if i else "") for i, (ids, separator) in enumerate(parts)
        ]

    def split(self, text: str, separator: str = "") -> list[tuple[list[int], str]]:
        """Split a text that is too long near its middle, at a sentence end or else a space."""
        if not text.strip():
            return []
        [ids] = self.tokenizer.source.encode([f"{self.tag} {text}" if self.tag else text])
        if not ids:
            return []
        if len(ids) <= self.max_source_len or len(text) == 1:
            return [(ids, separator)]
        middle = len(text) / 2
        for pattern, reach in ((_SENTENCE_END, len(text) / 4), (_SPACE, middle)):
            cuts = [m.span() for m in pattern.finditer(text, 1, len(text) - 1)]
            start, end = min(cuts, key=lambda span: abs(span[0] - middle), default=(0, 0))
            if start and abs(start - middle) <= reach:
                break
        else:
            start = end = int(middle)
        gap = " " if end > start else ""
        return self.split(text[:start], separator) + self.split(text[end:], gap)

    def search(self, sources: Sequence[Sequence[int]]) -> list[Hypothesis]:
        """Return the best hypothesis for each row of source ids (without the end symbol).

        Raises UserError if the model predicts NaN.
        """
        results: list[Hypothesis | None] = [None] * len(sources)
        for indices in self._batches([len(source) + 1 for source in sources]):
            rows = [np.array(sources[index], dtype=np.int32) for index in indices]
            try:
                found = self.search_batch(rows)
            except FloatingPointError:
                raise UserError(not_a_number(self.name)) from None
            for index, hypothesis in zip(indices, found, strict=True):
                results[index] = hypothesis
        return [hypothesis for hypothesis in results if hypothesis is not None]

    def _batches(self, lens: Sequence[int]) -> Iterator[list[int]]:
        """Yield batches of indices, longest first, of at most `batch_tokens` tokens times width."""
        batch: list[int] = []
        for index in sorted(range(len(lens)), key=lambda index: -lens[index]):
            longest = lens[batch[0]] if batch else lens[index]
            if (
                batch
                and (len(batch) + 1) * longest * self.decoding.beam > self.decoding.batch_tokens
            ):
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch

    @torch.inference_mode()
    def search_batch(self, rows: list[np.ndarray]) -> list[Hypothesis]:
        """Return the best hypothesis for each row of a batch; raises FloatingPointError for NaN."""
        vocabulary, decoding = self.tokenizer.target, self.decoding
        device = self.model.device
        source = one_each(end_rows(rows, self.tokenizer.source))
        with timed("encoding", len(source.ids), device):
            state = self.model.start(source.to(device), len(rows))
        max_lens = torch.tensor([len(row) + 1 + decoding.max_extra for row in rows], device=device)
        max_lens.clamp_(max=self._max_target_len)
        penalty = LengthPenalty(decoding.length_penalty, decoding.penalty_form)
        search = partial(beam_search, beam=decoding.beam) if decoding.beam > 1 else greedy_search
        return search(
            self.step,
            state,
            bos_id=vocabulary.bos_id,
            eos_id=vocabulary.eos_id,
            max_lens=max_lens,
            penalty=penalty,
        )

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """Return the next token's log-probabilities, (R, V), after the newest tokens, (R,)."""
        with timed("search", len(tokens), tokens.device):
            log_probs = self.model.step(tokens, state)
            log_probs[:, self._suppressed_ids] = -torch.inf
        return log_probs


def _require_transformer(loaded: LoadedModel, directory: str | Path) -> Transformer:
    if not isinstance(loaded.model, Transformer):
        raise UserError(f"{directory} does not translate: its task is {loaded.config.task}")
    return loaded.model
