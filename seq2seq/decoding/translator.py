"""Translate lines of text in batches, including blank and very long lines."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seq2seq.config import DecodingConfig
from seq2seq.data.streams import LINES_AT_ONCE
from seq2seq.decoding.alignment import (
    align,
    may_omit,
    omits,
    repeats_itself,
    sentences_of,
    words_in,
)
from seq2seq.decoding.beams import Hypothesis
from seq2seq.decoding.constraints import Glossary
from seq2seq.decoding.engine import Advance, SearchEngine
from seq2seq.decoding.exported import ExportedEngine
from seq2seq.decoding.options import changed_decoding, check_options
from seq2seq.decoding.segments import Line, Request, Segment, Segmenter, make_requests
from seq2seq.errors import OptionError, UserError, not_a_number
from seq2seq.machine.workers import usable_workers
from seq2seq.model.directory import load_model
from seq2seq.model.inference import choose_precision, for_inference
from seq2seq.model.saved import find_model, is_exported
from seq2seq.model.transformer import Transformer

Engine = SearchEngine | ExportedEngine

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Translation:
    """The translations of a text, the best first, and scored references."""

    nbest: Sequence[Hypothesis]
    """Empty after an error, and without a search."""
    references: Sequence[Hypothesis] = ()
    warnings: tuple[str, ...] = ()
    """`repetition`: repeats itself; `omission`: seems to leave out part of the source."""
    terms: int = 0
    terms_kept: int = 0
    error: str | None = None
    """Why the text was not translated."""

    @property
    def text(self) -> str:
        """The best translation; empty after an error."""
        return self.nbest[0].text if self.nbest else ""

    @property
    def score(self) -> float:
        """The score of the best translation; NaN without one."""
        return self.nbest[0].score if self.nbest else math.nan

    @property
    def alignment(self) -> Sequence[tuple[int, int]]:
        """The word alignment of the best translation; empty without one."""
        return self.nbest[0].alignment if self.nbest else ()


class Translator:
    """Translates text with a model; the command line is a thin wrapper around this."""

    def __init__(self, engine: Engine, decoding: DecodingConfig, tag: str | None = None) -> None:
        """decoding: of texts for which no other options are given. tag: put before every text."""
        self.engine, self.decoding, self.tag = engine, decoding, tag
        self.tokenizer = engine.tokenizer
        if tag is not None and not self.tokenizer.source.knows(tag):
            raise OptionError(
                f"`tag`={tag!r} is not a symbol of this model's tokenizer: name a tag of its "
                "training corpora"
            )
        limit = engine.max_source_len
        target_limit = min(limit, engine.max_target_len - 1)
        self._segmenter = Segmenter(self.tokenizer, tag, limit, target_limit)

    @classmethod
    def load(
        cls,
        directory: str | Path,
        *,
        others: Sequence[str | Path] = (),
        checkpoint: str | None = None,
        tag: str | None = None,
        device: str | None = None,
        workers: int | None = None,
        **decoding: Any,
    ) -> Translator:
        """Load a run's best model, a model directory, or a model exported to CTranslate2.

        others: more runs or model directories with the same tokenizer, to form an ensemble.
        workers: maximum number of processes that share the texts on a CPU; by default as many as
        there are cores. They are forked: a program with threads of its own should take 1.
        decoding: keys of the recipe's section `decoding`, to replace its values.
        """
        folders = [find_model(Path(each), checkpoint) for each in (directory, *others)]
        name = " with ".join(map(str, [directory, *others]))
        if others and (exports := [each for each in folders if is_exported(each)]):
            raise UserError(
                f"{exports[0]} is a model for CTranslate2, which forms no ensembles; form one "
                "of the runs they were exported from"
            )
        if is_exported(folders[0]):
            for option in ("precision", "lookahead"):
                if decoding.get(option):
                    raise OptionError(
                        f"{name} is a model for CTranslate2, which has the precision of its export "
                        f"and its own end of a search: leave `{option}` out"
                    )
            exported = ExportedEngine(folders[0], device, name)
            return cls(exported, changed_decoding(exported.config.decoding, decoding), tag)
        loaded = [load_model(folder, device) for folder in folders]
        first, models = loaded[0], []
        for path, each in zip([directory, *others], loaded, strict=True):
            if not isinstance(each.model, Transformer):
                raise UserError(f"{path} does not translate: its task is {each.config.task}")
            if each.tokenizer.checksum != first.tokenizer.checksum:
                raise UserError(f"{path} and {directory} have different tokenizers")
            models.append(each.model)
        configs = [each.config for each in loaded]
        settings = changed_decoding(first.config.decoding, decoding)
        precision = choose_precision(settings.precision, models[0].device)
        if settings.precision == "auto":
            logger.info("translation in %s, the fastest on %s", precision, models[0].device)
        try:
            models = [for_inference(model, precision) for model in models]
        except FloatingPointError:
            raise UserError(not_a_number(name)) from None
        engine = SearchEngine(models, first.tokenizer, configs, name)
        engine.batch_invariant = precision != "int8"
        if engine.device.type == "cpu":
            engine.workers = workers or usable_workers()
        return cls(engine, settings, tag)

    def translate(
        self,
        texts: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        constraints: Sequence[Sequence[str]] | None = None,
        glossary: Glossary | None = None,
        split: bool = True,
        **decoding: Any,
    ) -> list[str]:
        """Return the translation of each text, in order; that of a blank text is empty.

        The options are those of `translations`. A text that cannot be translated with them has an
        empty translation, and a warning is logged.
        """
        requests = make_requests(texts, prefixes, constraints, None, glossary)
        changed = changed_decoding(self.decoding, decoding)
        found = self._process_all(requests, changed, split=split, warnings=False)
        return [each.text for each in found]

    def translations(
        self,
        texts: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        constraints: Sequence[Sequence[str]] | None = None,
        references: Sequence[Sequence[str]] | None = None,
        glossary: Glossary | None = None,
        split: bool = True,
        nbest: int = 1,
        tokens: bool = False,
        alignment: bool = False,
        search: bool = True,
        **decoding: Any,
    ) -> list[Translation]:
        """Return a `Translation` for each text, in order: its score, and what is asked for.

        prefixes: their beginnings. constraints: terms of each text (`Term.parse`). references:
        translations to score. split: translate parts of a text that is too long; otherwise its
        `Translation` has an error. nbest: number of translations of each text. tokens: with pieces
        and their log-probabilities. alignment: with word alignments. search: translate; otherwise
        only score the references. decoding: keys of the recipe's section `decoding`, to replace its
        values. The translator's tag, if any, is put before every text.
        """
        requests = make_requests(texts, prefixes, constraints, references, glossary)
        changed = changed_decoding(self.decoding, decoding)
        return self._process_all(
            requests, changed, nbest=nbest, tokens=tokens, alignment=alignment, search=search,
            split=split,
        )  # fmt: skip

    def _process_all(
        self, requests: Sequence[Request], decoding: DecodingConfig, **options: Any
    ) -> list[Translation]:
        """Translate some lines at a time, and log errors."""
        found: list[Translation] = []
        for start in range(0, len(requests), LINES_AT_ONCE):
            found += self.process(requests[start : start + LINES_AT_ONCE], decoding, **options)
        log_errors(requests, found)
        return found

    def process(
        self,
        requests: Sequence[Request],
        decoding: DecodingConfig | None = None,
        *,
        nbest: int = 1,
        tokens: bool = False,
        alignment: bool = False,
        search: bool = True,
        split: bool = True,
        warnings: bool = True,
        advance: Advance | None = None,
    ) -> list[Translation]:
        """Return one translation for each request, in order, all searched together.

        warnings: of omissions, too, which take time. Other options are those of `translations`.
        """
        decoding = decoding or self.decoding
        if decoding.precision != self.decoding.precision:
            raise TypeError("precision is an option of Translator.load alone")
        terms = any(request.terms for request in requests)
        self.engine.require_supported(decoding, terms=terms, alignment=alignment)
        check_options(requests, decoding, nbest)
        lines = self._segmenter.lines(requests, split=split and search)
        if search:
            segments = [segment for line in lines for segment in line.segments]
            found = self.engine.search(segments, decoding, nbest=nbest, advance=advance)
            for segment, own in zip(segments, found, strict=True):
                segment.found = own
            if decoding.sample:
                for line in lines:
                    _sort_samples(line.segments)
            for segment in segments:
                if segment.found and repeats_itself(segment.source, segment.found[0].tokens):
                    segment.warnings.add("repetition")
            self._write(segments, decoding, tokens=tokens, alignment=alignment)
            if warnings:
                self._warn_of_omissions(segments, decoding)
        references = self._references(lines, decoding, tokens=tokens, alignment=alignment)
        return [
            _translation(line, own, search=search)
            for line, own in zip(lines, references, strict=True)
        ]

    def _write(
        self,
        segments: Sequence[Segment],
        decoding: DecodingConfig,
        *,
        tokens: bool,
        alignment: bool,
    ) -> None:
        """Add texts to translations, and what else is wanted."""
        found = [(segment, each) for segment in segments for each in segment.found]
        texts = self.tokenizer.target.decode([each.tokens for _, each in found])
        for (_, each), text in zip(found, texts, strict=True):
            each.text = text
        if not tokens and not alignment:
            return
        given = [(segment.text, segment.source, each.text, each.tokens) for segment, each in found]
        scored = self._scored(given, decoding, tokens=tokens, alignment=alignment)
        for (_, each), own in zip(found, scored, strict=True):
            each.log_probs, each.pieces, each.alignment = own.log_probs, own.pieces, own.alignment

    def _references(
        self, lines: Sequence[Line], decoding: DecodingConfig, *, tokens: bool, alignment: bool
    ) -> list[list[Hypothesis]]:
        """Return the scored references of each line, as the tokenizer segments them."""
        given = [() if line.error else line.request.references for line in lines]
        every = [(i, text) for i, references in enumerate(given) for text in references]
        sources = {i: self._segmenter.encode(lines[i].request.text) for i, _ in every}
        targets = self.tokenizer.target.encode([text for _, text in every])
        pairs = [
            (lines[i].request.text, sources[i], text, ids)
            for (i, text), ids in zip(every, targets, strict=True)
        ]
        scored = iter(self._scored(pairs, decoding, tokens=tokens, alignment=alignment))
        return [[next(scored) for _ in references] for references in given]

    def _scored(
        self,
        pairs: Sequence[tuple[str, Sequence[int], str, Sequence[int]]],
        decoding: DecodingConfig,
        *,
        tokens: bool,
        alignment: bool,
    ) -> list[Hypothesis]:
        """Score pairs of source and target, each as text and ids; add what else is wanted."""
        target, tags = self.tokenizer.target, int(self.tag is not None)
        heads = self.engine.heads if alignment else None
        scored = self.engine.score([(ids, own) for _, ids, _, own in pairs], decoding, heads)
        for (source_text, source, text, ids), each in zip(pairs, scored, strict=True):
            each.text = text
            if tokens:
                each.pieces = target.pieces([*ids, target.eos_id])
            if alignment and each.attention is not None:
                tagged = self._segmenter.tagged(source_text)
                words = words_in(tagged, source, self.tokenizer.source)
                links = align(each.attention, words, words_in(text, ids, target))
                each.alignment = [(i - tags, j) for i, j in links if i >= tags]
            each.attention = None
        return scored

    def _warn_of_omissions(self, segments: Sequence[Segment], decoding: DecodingConfig) -> None:
        """Add a warning where a translation seems to leave out part of its source."""
        if self.engine.heads is None:
            return
        suspects = [
            each
            for each in segments
            if may_omit(each.text, each.found[0].text, len(each.source), len(each.found[0].tokens))
        ]
        pairs = [(each.source, each.found[0].tokens) for each in suspects]
        scored = self.engine.score(pairs, decoding, self.engine.heads)
        for segment, each in zip(suspects, scored, strict=True):
            parts = [len(self._segmenter.encode(part)) for part in sentences_of(segment.text)]
            if each.attention is not None and omits(each.attention, parts):
                segment.warnings.add("omission")


def log_errors(requests: Sequence[Request], translations: Sequence[Translation]) -> None:
    """Log why lines were not translated."""
    for request, translation in zip(requests, translations, strict=True):
        if translation.error:
            logger.warning("line %d: not translated: %s", request.number + 1, translation.error)


def _translation(line: Line, references: Sequence[Hypothesis], *, search: bool) -> Translation:
    searched = search and not line.error
    nbest = line.joined() if searched else []
    terms = line.request.terms if searched else ()
    warnings = sorted({each for segment in line.segments for each in segment.warnings})
    kept = sum(term.kept(nbest[0].text) for term in terms) if nbest else 0
    return Translation(nbest, references, tuple(warnings), len(terms), kept, line.error)


def _sort_samples(segments: Sequence[Segment]) -> None:
    """Sort the samples of a line, in all of its parts alike: one draw stays one translation."""
    draws = list(zip(*(segment.found for segment in segments), strict=False))
    draws.sort(key=lambda parts: -sum(part.score for part in parts))
    for i, segment in enumerate(segments):
        segment.found = [parts[i] for parts in draws]
