"""Translate lines of text in batches, including blank and very long lines."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from seq2seq.config import DecodingConfig
from seq2seq.data.streams import LINES_AT_ONCE
from seq2seq.decoding.alignment import align, words_in
from seq2seq.decoding.beams import Hypothesis
from seq2seq.decoding.engine import Advance, Engine, Query, Scored, SearchEngine
from seq2seq.decoding.exported import ExportedEngine
from seq2seq.decoding.guard import RETRY_NGRAM, may_omit, omits, repeats_itself, sentences_of
from seq2seq.decoding.lines import Line, LineReader
from seq2seq.decoding.options import PLAIN, Output, changed_decoding, check_options
from seq2seq.decoding.request import Request
from seq2seq.decoding.segments import Segment, joined
from seq2seq.decoding.terms import Glossary, Term, kept_of
from seq2seq.decoding.translation import Candidate, Translation, log_errors
from seq2seq.decoding.workers import usable_workers
from seq2seq.errors import UserError
from seq2seq.model.directory import LoadedModel, load_model
from seq2seq.model.inference import choose_precision, for_inference
from seq2seq.model.saved import find_model, is_exported
from seq2seq.model.transformer import Transformer

logger = logging.getLogger(__name__)


class Translator:
    """Translates text with a model; the command line is a thin wrapper around this."""

    def __init__(self, engine: Engine, decoding: DecodingConfig, tag: str | None = None) -> None:
        """decoding: of texts for which no other options are given. tag: put before every text."""
        self.engine, self.decoding, self.tag = engine, decoding, tag
        self.tokenizer = engine.tokenizer
        if tag is not None and not self.tokenizer.source.knows(tag):
            raise UserError(f"tag={tag!r} is not a symbol of this model's tokenizer")
        limit = engine.max_source_len
        self._reader = LineReader(self.tokenizer, tag, limit, min(limit, engine.max_target_len - 1))
        sides = (self.tokenizer.source, self.tokenizer.target)
        self._bytes = [side.token_bytes() for side in sides]

    @classmethod
    def load(
        cls,
        directory: str | Path,
        *,
        others: Sequence[str | Path] = (),
        checkpoint: str | None = None,
        tag: str | None = None,
        device: str | None = None,
        **decoding: Any,
    ) -> Translator:
        """Load a run's best model, a model directory, or a model exported to CTranslate2.

        others: more runs or model directories with the same tokenizer, to form an ensemble.
        decoding: keys of the recipe's section `decoding`, to replace its values.
        """
        folders = [find_model(Path(each), checkpoint) for each in (directory, *others)]
        name = " with ".join(map(str, [directory, *others]))
        if others and (exports := [each for each in folders if is_exported(each)]):
            raise UserError(
                f"{exports[0]} is a model for CTranslate2, which has no --with; form the ensemble "
                "of the runs they were exported from"
            )
        if is_exported(folders[0]):
            if decoding.get("precision"):
                raise UserError(
                    f"{name} is a model for CTranslate2: its precision is that of its export; leave "
                    "--precision out"
                )
            exported = ExportedEngine(folders[0], device, name)
            return cls(exported, changed_decoding(exported.config.decoding, decoding), tag)
        loaded = [load_model(folder, device) for folder in folders]
        first, *more = loaded
        models = [
            _require_transformer(each, name)
            for each, name in zip(loaded, [directory, *others], strict=True)
        ]
        for other, one in zip(others, more, strict=True):
            if one.tokenizer.checksum != first.tokenizer.checksum:
                raise UserError(f"{other} and {directory} have different tokenizers")
        configs = [each.config for each in loaded]
        settings = changed_decoding(first.config.decoding, decoding)
        precision = choose_precision(settings.precision, models[0].device)
        logger.info("translation in %s on %s", precision, models[0].device)
        models = [for_inference(model, precision) for model in models]
        engine = SearchEngine(models, first.tokenizer, configs, first.heads, name)
        if engine.device.type == "cpu":
            engine.workers = usable_workers()
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
        requests = _requests(texts, prefixes, constraints, None, glossary)
        changed = changed_decoding(self.decoding, decoding)
        return [each.text for each in self._in_blocks(requests, changed, PLAIN, split=split)]

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
        `Translation` has an error. nbest: number of translations of each text. tokens: with the
        log-probabilities of their tokens. alignment: with word alignments. search: translate;
        otherwise only score the references. decoding: keys of the recipe's section `decoding`, to
        replace its values. The translator's tag, if any, is put before every text.
        """
        requests = _requests(texts, prefixes, constraints, references, glossary)
        changed = changed_decoding(self.decoding, decoding)
        output = Output(nbest, tokens, alignment, warnings=True, search=search)
        return self._in_blocks(requests, changed, output, split=split)

    def _in_blocks(
        self, requests: Sequence[Request], decoding: DecodingConfig, output: Output, *, split: bool
    ) -> list[Translation]:
        """Translate some lines at a time, and log errors."""
        found: list[Translation] = []
        for start in range(0, len(requests), LINES_AT_ONCE):
            block = requests[start : start + LINES_AT_ONCE]
            found += self.process(block, decoding, output, split=split)
        log_errors(requests, found)
        return found

    def process(
        self,
        requests: Sequence[Request],
        decoding: DecodingConfig | None = None,
        output: Output = PLAIN,
        *,
        split: bool = True,
        advance: Advance | None = None,
    ) -> list[Translation]:
        """Return one translation for each request, in order, all searched together."""
        decoding = decoding or self.decoding
        if decoding.precision != self.decoding.precision:
            raise TypeError("precision is an option of Translator.load alone")
        self.engine.require_supported(requests, decoding, output)
        check_options(requests, decoding, output)
        lines = self._reader.read(requests, split=split and output.search)
        segments = [
            segment
            for number, line in enumerate(lines if output.search else ())
            for segment in self._reader.segments(number, line)
        ]
        queries = [segment.query for segment in segments]
        found = self.engine.search(queries, decoding, nbest=output.nbest, advance=advance)
        parts: list[list[int]] = [[] for _ in requests]
        for place, segment in enumerate(segments):
            parts[segment.line].append(place)
        if decoding.sample:
            for places in parts:
                _sort_samples(found, places)
        warnings = self._retry(queries, found, decoding, output.nbest)
        candidates = self._candidates(segments, found, decoding, output)
        if output.warnings:
            self._warn(segments, found, candidates, decoding, warnings)
        references = self._score(lines, decoding, output)
        results = []
        for number, line in enumerate(lines):
            own = [(segments[i], candidates[i]) for i in parts[number]]
            # A blank line has no parts and one empty translation.
            count = min((len(each) for _, each in own), default=1)
            searched = output.search and not line.error
            nbest = [joined(own, rank) for rank in range(count)] if searched else []
            terms = line.request.terms if searched else ()
            results.append(
                Translation(
                    tuple(nbest),
                    tuple(references[number]),
                    tuple(sorted({name for i in parts[number] for name in warnings[i]})),
                    len(terms),
                    kept_of(terms, nbest[0].text) if nbest else 0,
                    line.error,
                )
            )
        return results

    def _retry(
        self,
        queries: Sequence[Query],
        found: list[list[Hypothesis]],
        decoding: DecodingConfig,
        nbest: int,
    ) -> list[set[str]]:
        """Search again, without repeated n-grams, where a translation repeats itself.

        Not for samples, which have the probabilities of the model.
        """
        warnings: list[set[str]] = [set() for _ in queries]
        looped = [
            i
            for i, query in enumerate(queries)
            if found[i] and repeats_itself(query.source, found[i][0].tokens)
        ]
        again: list[list[Hypothesis]] = [[] for _ in looped]
        may_retry = decoding.retry_repetitions and not decoding.sample
        if may_retry and not decoding.no_repeat_ngram and looped:
            blocked = replace(decoding, no_repeat_ngram=RETRY_NGRAM)
            again = self.engine.search([queries[i] for i in looped], blocked, nbest=nbest)
        for i, retried in zip(looped, again, strict=True):
            if retried and not repeats_itself(queries[i].source, retried[0].tokens):
                found[i] = retried
                warnings[i].add("retried")
            else:
                warnings[i].add("repetition")
        return warnings

    def _candidates(
        self,
        segments: Sequence[Segment],
        found: Sequence[Sequence[Hypothesis]],
        decoding: DecodingConfig,
        output: Output,
    ) -> list[list[Candidate]]:
        pairs = [
            (segment.query.source, hypothesis.tokens)
            for segment, hypotheses in zip(segments, found, strict=True)
            for hypothesis in hypotheses
        ]
        texts = iter(self.tokenizer.target.decode([target for _, target in pairs]))
        details = iter(self._details(pairs, decoding, output))
        return [
            [
                self._candidate(
                    segment.text,
                    segment.query.source,
                    next(texts),
                    hypothesis,
                    next(details),
                    output,
                )
                for hypothesis in hypotheses
            ]
            for segment, hypotheses in zip(segments, found, strict=True)
        ]

    def _details(
        self,
        pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
        decoding: DecodingConfig,
        output: Output,
    ) -> Sequence[Scored | None]:
        """Return log-probabilities of tokens and attention, if they are wanted."""
        if not output.tokens and not output.alignment:
            return [None] * len(pairs)
        return self.engine.score(pairs, decoding, self.engine.heads if output.alignment else None)

    def _candidate(
        self,
        source_text: str,
        source: Sequence[int],
        text: str,
        hypothesis: Hypothesis,
        scored: Scored | None,
        output: Output,
    ) -> Candidate:
        candidate = Candidate(text, hypothesis.score, hypothesis.log_prob)
        target = self.tokenizer.target
        if scored and output.tokens:
            pieces = target.pieces([*hypothesis.tokens, target.eos_id])
            tokens = tuple(zip(pieces, scored.log_probs, strict=True))
            candidate = replace(candidate, tokens=tokens)
        if scored and scored.attention is not None and output.alignment:
            tagged = self._reader.tagged(source_text)
            links = align(
                scored.attention,
                words_in(tagged, source, self.tokenizer.source, self._bytes[0]),
                words_in(text, hypothesis.tokens, target, self._bytes[1]),
            )
            tags = int(self.tag is not None)
            links = [(i - tags, j) for i, j in links if i >= tags]
            candidate = replace(candidate, alignment=tuple(links))
        return candidate

    def _score(
        self, lines: Sequence[Line], decoding: DecodingConfig, output: Output
    ) -> list[list[Candidate]]:
        """Score the references of each line, as the tokenizer segments them."""
        texts = [
            (i, text)
            for i, line in enumerate(lines)
            for text in (line.request.references if not line.error else ())
        ]
        sources = {i: self._reader.encode(lines[i].request.text) for i, _ in texts}
        targets = self.tokenizer.target.encode([text for _, text in texts])
        pairs = [(sources[i], ids) for (i, _), ids in zip(texts, targets, strict=True)]
        heads = self.engine.heads if output.alignment else None
        results: list[list[Candidate]] = [[] for _ in lines]
        found = self.engine.score(pairs, decoding, heads)
        for (i, text), scored in zip(texts, found, strict=True):
            results[i].append(
                self._candidate(
                    lines[i].request.text, sources[i], text, scored.hypothesis, scored, output
                )
            )
        return results

    def _warn(
        self,
        segments: Sequence[Segment],
        found: Sequence[Sequence[Hypothesis]],
        candidates: Sequence[Sequence[Candidate]],
        decoding: DecodingConfig,
        warnings: Sequence[set[str]],
    ) -> None:
        """Add a warning where a translation seems to leave out part of its source."""
        if self.engine.heads is None:
            return
        suspects = [
            i
            for i, segment in enumerate(segments)
            if may_omit(
                segment.text,
                candidates[i][0].text,
                len(segment.query.source),
                len(found[i][0].tokens),
            )
        ]
        pairs = [(segments[i].query.source, found[i][0].tokens) for i in suspects]
        scored = self.engine.score(pairs, decoding, self.engine.heads) if pairs else []
        for i, each in zip(suspects, scored, strict=True):
            parts = [len(self._reader.encode(part)) for part in sentences_of(segments[i].text)]
            if each.attention is not None and omits(each.attention, parts):
                warnings[i].add("omission")


def _requests(
    texts: Sequence[str],
    prefixes: Sequence[str] | None,
    constraints: Sequence[Sequence[str]] | None,
    references: Sequence[Sequence[str]] | None,
    glossary: Glossary | None,
) -> list[Request]:
    if isinstance(texts, str):
        raise TypeError("a translator takes a list of texts; write translate([text])[0]")
    lists = {"prefixes": prefixes, "constraints": constraints, "references": references}
    for name, given in lists.items():
        if given is not None and len(given) != len(texts):
            raise UserError(f"{name} has {len(given)} entries for {len(texts)} texts")
    requests = []
    for number, text in enumerate(texts):
        terms = [Term.parse(term) for term in constraints[number]] if constraints else []
        terms += glossary.terms(text) if glossary else []
        requests.append(
            Request(
                text,
                number,
                prefix=prefixes[number] if prefixes else "",
                terms=tuple(dict.fromkeys(terms)),
                references=tuple(references[number]) if references else (),
            )
        )
    return requests


def _sort_samples(found: list[list[Hypothesis]], parts: Sequence[int]) -> None:
    """Sort the samples of a line, in all of its parts alike: one draw stays one translation."""
    ranks = range(min((len(found[i]) for i in parts), default=0))
    order = sorted(ranks, key=lambda rank: -sum(found[i][rank].score for i in parts))
    for i in parts:
        found[i] = [found[i][rank] for rank in order]


def _require_transformer(loaded: LoadedModel, directory: str | Path) -> Transformer:
    if not isinstance(loaded.model, Transformer):
        raise UserError(f"{directory} does not translate: its task is {loaded.config.task}")
    return loaded.model
