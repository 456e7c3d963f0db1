"""From requests to what an engine translates, and from its hypotheses to translations."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seq2seq.config import DecodingConfig
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.alignment import (
    align,
    join_alignments,
    piece_starts,
    piece_words,
    repeats_itself,
)
from seq2seq.decoding.engine import Engine, Hypothesis, Source
from seq2seq.decoding.terms import Term
from seq2seq.decoding.translation import END, Candidate, Options, Request, Translation
from seq2seq.errors import UserError
from seq2seq.text.language import Sentences
from seq2seq.text.pipeline import Pipeline, Prepared, Segment, Stage
from seq2seq.text.protect import ProtectedText, Spelling

logger = logging.getLogger(__name__)


class Written(NamedTuple):
    """What a model has written, or would write, for a segment: a hypothesis or a reference."""

    segment: Segment
    source: Sequence[str]
    """Pieces of the segment."""
    pieces: Sequence[str]
    text: str
    """Text of the pieces, with lost spans inserted."""
    log_prob: float | None = None
    num_repaired: int = 0
    log_probs: Sequence[float] = ()
    alignment: Sequence[tuple[int, int]] = ()


class EncodedRequest(NamedTuple):
    """A request in the form that an engine needs."""

    request: Request
    prepared: Prepared
    sources: Sequence[Source] = ()
    """One for each segment of the text; empty if there is nothing to translate."""
    references: Sequence[Written] = ()
    error: str | None = None


def failed(request: Request, error: UserError) -> EncodedRequest:
    """Return a request that cannot be translated."""
    nothing = Prepared(ProtectedText(""), (), Spelling(None, False), None)
    return EncodedRequest(request, nothing, error=str(error))


class Encoder:
    """Checks requests of one direction, prepares their texts and encodes them."""

    def __init__(
        self, tokenizer: Tokenizer, pipeline: Pipeline, max_len: int, max_target_len: int
    ) -> None:
        """max_len: maximum length of a segment. max_target_len: maximum length of prefixes and
        references. Both are in tokens, without the end symbol.
        """
        self.source, self.target = tokenizer.translation_vocabularies
        self.pipeline, self.max_len, self.max_target_len = pipeline, max_len, max_target_len

    def encode(
        self, requests: Sequence[Request], options: Options, decoding: DecodingConfig
    ) -> list[EncodedRequest]:
        """Encode requests. Long texts are split; with `decoding.paragraphs`, all texts."""
        glossary, languages = options.glossary, self.pipeline.languages
        stages = partial(self.pipeline.stages, recase=decoding.recase)
        if glossary:
            stages = partial(stages, terms=glossary.case_sensitive)
        whole = usual = stages()
        if decoding.paragraphs:
            usual = stages(sentences=Sentences(languages))
        short = stages(sentences=Sentences(languages, self.max_len, partial(self._count, whole)))
        prepared = [self.pipeline.before(x.text, whole if x.is_whole else usual) for x in requests]
        # A call for each text would be a hundred times as slow.
        rows = iter(self._pieces(chain.from_iterable(x.segments for x in prepared)))
        encoded = []
        for request, text in zip(requests, prepared, strict=True):
            pieces = [next(rows) for _ in text.segments]
            try:
                if any(len(row) > self.max_len for row in pieces):
                    text = self.pipeline.before(request.text, short)
                    pieces = self._pieces(text.segments)
                    self._report_split(request, len(pieces))
                encoded.append(self._encode(request, text, pieces, options))
            except UserError as error:
                encoded.append(failed(request, error))
        return encoded

    def _pieces(self, segments: Iterable[Segment]) -> list[list[str]]:
        return self.source.encode_pieces([segment.read for segment in segments])

    def _count(self, stages: Sequence[Stage], texts: Sequence[ProtectedText]) -> list[int]:
        """Return the number of tokens that the model reads for each text after some stages."""
        for stage in stages:
            texts = [part for text in texts for part in stage.before(text)[0]]
        return [len(row) for row in self.source.encode_pieces(list(map(self.pipeline.read, texts)))]

    def _encode(
        self, request: Request, text: Prepared, pieces: Sequence[list[str]], options: Options
    ) -> EncodedRequest:
        references = self._references(request, text)
        if not any(pieces):
            return EncodedRequest(request, text._replace(segments=()), references=references)
        prefix: list[str] = []
        if request.prefix:
            [prefix] = self.target.encode_pieces([text.given(request.prefix)])
        sources = []
        given = list(map(Term, request.constraints))
        for number, (segment, row) in enumerate(zip(text.segments, pieces, strict=True)):
            found = options.glossary.terms(segment.text.plain) if options.glossary else ()
            encoded = tuple(dict.fromkeys(map(self._encode_term, [*given, *found])))
            if prefix or encoded:
                required = [*prefix, *(token for term in encoded for token in term.tokens)]
                self._require_short("the prefix, with terms,", required)
            sources.append(Source(row, prefix, encoded, (request.number, number)))
        return EncodedRequest(request, text, sources, references)

    def _references(self, request: Request, text: Prepared) -> list[Written]:
        """Return the references as the model would write them."""
        if not request.references:
            return []
        segments = text.segments or [self.pipeline.segment(text.whole)]
        [source] = self._pieces(segments)
        texts = list(map(text.given, request.references))
        rows = self.target.encode_pieces(texts)
        self._require_short("a reference", *rows)
        return [
            Written(segments[0], source, row, reference)
            for row, reference in zip(rows, texts, strict=True)
        ]

    def _report_split(self, request: Request, count: int) -> None:
        problem = (
            f"a line of {len(request.text)} characters exceeds the maximum source length of "
            f"{self.max_len} tokens"
        )
        if request.is_whole:
            raise UserError(f"{problem}; with a prefix, terms or references it cannot be split")
        logger.warning("%s; translated in %d parts", problem, count)

    def _encode_term(self, term: Term) -> Term:
        """Return a term with token ids and normalised text."""
        [ids] = self.target.encode([" ".join(term.text.split())])
        [text] = self.target.decode([ids])
        if not text.strip() or self.target.unk_id in ids:
            raise UserError(f"the tokenizer cannot encode the term {term.text!r}")
        return replace(term, text=" ".join(text.split()), tokens=tuple(ids))

    def _require_short(self, name: str, *targets: Sequence[object]) -> None:
        if (length := max(map(len, targets), default=0)) > self.max_target_len:
            raise UserError(
                f"{name} has {length} tokens, above the maximum length of {self.max_target_len}"
            )


class Decoder:
    """Makes translations of an engine's hypotheses, with the outputs that the options ask for."""

    def __init__(
        self, engine: Engine, spelling: Spelling, options: Options, decoding: DecodingConfig
    ) -> None:
        self.engine, self.spelling = engine, spelling
        self.options, self.decoding = options, decoding

    def decode(
        self, requests: Sequence[EncodedRequest], found: Sequence[Sequence[Hypothesis]]
    ) -> list[Translation]:
        """Return the translation of each request.

        found: hypotheses of the sources of all requests; empty without a search.
        """
        segments = [
            (segment, source.pieces)
            for request in requests
            for segment, source in zip(request.prepared.segments, request.sources, strict=True)
        ]
        hypotheses = [
            (*segment, hypothesis)
            for segment, row in zip(segments, found, strict=False)
            for hypothesis in row
        ]
        texts = self.engine.target.decode_pieces([x.pieces for _, _, x in hypotheses])
        written = [
            Written(segment, source, x.pieces, text, x.log_prob)
            for (segment, source, x), text in zip(hypotheses, texts, strict=True)
        ]
        written = self._repaired(written)
        written += chain.from_iterable(request.references for request in requests)
        completed = iter(self._aligned(self._scored(written, num_found=len(hypotheses))))
        rows = iter([list(islice(completed, len(row))) for row in found])
        nbest = [list(islice(rows, len(request.sources))) for request in requests]
        return [
            self._translation(request, own, list(islice(completed, len(request.references))))
            for request, own in zip(requests, nbest, strict=True)
        ]

    def _repaired(self, written: Sequence[Written]) -> list[Written]:
        """Insert the protected spans that the search lost, and count faults."""
        spelling, repaired = self.spelling, list(written)
        lost_spans = {}
        for i, x in enumerate(written):
            if x.segment.text.spans:
                lost, num_repeated = spelling.faults(x.segment.text, x.text)
                repaired[i] = x._replace(num_repaired=len(lost) + num_repeated)
                if lost and x.pieces:
                    lost_spans[i] = lost
        attention = self._attention(repaired[i] for i in lost_spans)
        for (i, lost), weights in zip(lost_spans.items(), attention, strict=True):
            x = repaired[i]
            columns = piece_starts(x.segment.read, x.source, self.engine.source)
            rows = piece_starts(x.text, x.pieces, self.engine.target)
            text = spelling.repair(*x.segment[:2], x.text, lost, weights, columns, rows)
            repaired[i] = x._replace(text=text)
        return repaired

    def _scored(self, written: Sequence[Written], num_found: int) -> list[Written]:
        """Add log-probabilities. num_found: number of hypotheses; references come after them."""
        options, scored = self.options, list(written)
        chosen = [
            i
            for i, x in enumerate(written)
            if i >= num_found
            or options.tokens
            or (options.scores and not (self.engine.has_exact_scores and x.log_prob is not None))
        ]
        pairs = [(written[i].source, written[i].pieces) for i in chosen]
        for i, row in zip(chosen, self.engine.log_probs(pairs, self.decoding), strict=True):
            tokens = row if options.tokens else ()
            scored[i] = written[i]._replace(log_prob=sum(row), log_probs=tokens)
        return scored

    def _aligned(self, written: Sequence[Written]) -> list[Written]:
        """Add word alignments. Symbols before a source are not words."""
        if not self.options.alignment:
            return list(written)
        aligned, words = list(written), self.options.words
        read = map(self._as_read, written)
        chosen = {i: x for i, x in enumerate(read) if x.pieces}
        attention = self._attention(chosen.values())
        for (i, x), weights in zip(chosen.items(), attention, strict=True):
            text = x.segment.text
            placeholders = bool(text.spans) and self.spelling.has_placeholders
            words_of = partial(
                piece_words, words=words, restore=text.restore if placeholders else None
            )
            source = words_of(x.segment.read, x.source, self.engine.source)
            target = words_of(x.text, x.pieces, self.engine.target)
            links = align(weights, source, target)
            num_tags = len(words.findall(x.segment.tag))
            links = [(i - num_tags, j) for i, j in links if i >= num_tags]
            aligned[i] = written[i]._replace(alignment=links)
        return aligned

    def _as_read(self, written: Written) -> Written:
        """Return a repaired translation as the model would have written it."""
        if not written.num_repaired:
            return written
        spelling, source = self.spelling, written.segment.text
        text = spelling.read(source, spelling.checked(source, written.text))
        [pieces] = self.engine.target.encode_pieces([text])
        return written._replace(text=text, pieces=pieces)

    def _attention(self, written: Iterable[Written]) -> Iterator[NDArray[np.float32]]:
        pairs = [(x.source, x.pieces) for x in written]
        return iter(self.engine.attention(pairs, self.decoding) if pairs else [])

    def _translation(
        self,
        encoded: EncodedRequest,
        nbest: Sequence[Sequence[Written]],
        references: Sequence[Written],
    ) -> Translation:
        """Return the translation of a request. nbest: hypotheses of each segment."""
        request, prepared, sources = encoded.request, encoded.prepared, encoded.sources
        if encoded.error:
            return Translation(request, error=encoded.error)
        scored = [
            replace(self._candidate(prepared, [x], scores=True), text=text)
            for x, text in zip(references, request.references, strict=True)
        ]
        spans = len(prepared.whole.spans)
        if not self.options.search:
            return Translation(request, references=scored, spans=spans)
        if not sources:
            copied = Candidate(prepared.after([]), log_prob=0.0, score=0.0)
            return Translation(request, [copied], scored, spans=spans)
        ranks = list(zip(*nbest, strict=False))
        if len(ranks) > 1:  # samples are in the order in which they were drawn: sort them, too
            ranks.sort(key=lambda parts: -self._score(parts))
        scores = self.options.scores or self.options.tokens
        terms = {term for source in sources for term in source.terms}
        plain = prepared.joined([x.text for x in ranks[0]]) if terms else ""
        return Translation(
            request,
            [self._candidate(prepared, parts, scores=scores) for parts in ranks],
            scored,
            repeats=any(repeats_itself(x.source, self._as_read(x).pieces) for x in ranks[0]),
            terms=len(terms),
            terms_kept=sum(term.kept(plain) for term in terms),
            spans=spans,
        )

    def _candidate(
        self, prepared: Prepared, parts: Sequence[Written], *, scores: bool
    ) -> Candidate:
        """Return what the model has written for the segments of a text as one candidate."""
        texts, alignment = [x.text for x in parts], parts[0].alignment
        if len(parts) > 1 and self.options.alignment:
            checked = prepared.checked(texts)
            alignment = join_alignments(
                [x.segment.text.separator for x in parts],
                [x.segment.text.plain for x in parts],
                [x.segment.text.restore(text) for x, text in zip(parts, checked, strict=True)],
                [x.alignment for x in parts],
                self.options.words,
            )
        return Candidate(
            prepared.after(texts),
            reduce(lambda pieces, x: [*pieces, END, *x.pieces], parts[1:], parts[0].pieces),
            sum(x.log_prob or 0.0 for x in parts) if scores else None,
            self._score(parts) if scores else None,
            [x for part in parts for x in part.log_probs],
            alignment,
            sum(x.num_repaired for x in parts),
        )

    def _score(self, parts: Sequence[Written]) -> float:
        return sum(self.engine.score(self.decoding, x.log_prob, x.pieces) for x in parts)
