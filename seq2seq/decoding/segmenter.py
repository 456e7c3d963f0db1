"""Splits requests into segments for the search."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress

from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.segments import Hypothesis, Options, Request, Segment, Translation
from seq2seq.decoding.terms import Glossary, Term
from seq2seq.errors import UserError
from seq2seq.text.case import Recase, names, recase_outside, sentence_case, unusual_case
from seq2seq.text.protect import Masked, mask, span_ranges
from seq2seq.text.sentences import sentences

_SENTENCE_END = re.compile(r"(?<=[.!?;:。！？])\s+|(?<=[。！？])")
_SPACE = re.compile(r"\s+")
_OTHER_SPACES = "\t\u00a0\u2002\u2003\u2009\u202f\u3000"

logger = logging.getLogger(__name__)


class Segmenter:
    """Checks requests and splits their texts into segments."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        tag: str | None,
        max_len: int,
        max_target_len: int,
        *,
        pattern: re.Pattern[str] | None = None,
        language: str = "",
    ) -> None:
        """max_len: maximum length of a segment. max_target_len: maximum length of prefixes and
        references. Both are in tokens, without the end symbol. pattern: protected spans. language:
        source language, for the splitting into sentences.
        """
        self.source, self.target = tokenizer.translation_vocabularies
        self.tag, self.pattern, self.language = tag, pattern, language
        self.has_symbols = tokenizer.has_symbols
        rows = self.source.encode_pieces([f"a{space}a" for space in _OTHER_SPACES])
        unknown = [any(piece.startswith("<0x") for piece in row) for row in rows]
        self._spaces = dict.fromkeys(map(ord, compress(_OTHER_SPACES, unknown)), " ")
        """Translation table of spaces that the model can only read as bytes."""
        self.max_len, self.max_target_len = max_len, max_target_len

    def _whole(
        self, texts: Sequence[str], glossary: Glossary | None, *, recase: bool
    ) -> list[Segment]:
        """Return each text as one segment."""
        masked = [mask(x, self.pattern) if self.pattern else Masked(x) for x in texts]
        cases = [unusual_case(x.text) if recase else None for x in masked]
        masked = [
            replace(x, text=self._in_lower_case(x.text, case, glossary)) if case else x
            for x, case in zip(masked, cases, strict=True)
        ]
        segments = self._encode(masked)
        for segment, case in zip(segments, cases, strict=True):
            segment.recase = case
        return segments

    def _encode(self, texts: Sequence[Masked]) -> list[Segment]:
        """Return a segment for each text."""
        read = [self._read(text) for text in texts]
        # A call for each text would be a hundred times as slow.
        rows = self.source.encode_pieces(read)
        return [
            Segment(row, masked=masked, source_text=text, has_symbols=self.has_symbols)
            for row, masked, text in zip(rows, texts, read, strict=True)
        ]

    def _in_lower_case(self, text: str, case: Recase, glossary: Glossary | None = None) -> str:
        """Return a text in lower case, except for spans, names and case-sensitive terms."""
        keep = names(text, case, self.source.knows_word)
        keep += span_ranges(text, self.pattern)
        for term, ranges in glossary.terms(text).items() if glossary else ():
            keep += ranges if term.source != term.source.lower() else []
        return sentence_case(text, keep)

    def _read(self, masked: Masked) -> str:
        """Return what the model reads: the tag, if any, and the text."""
        text = masked.text.translate(self._spaces)
        if masked.spans and not self.has_symbols:
            text = masked.restore(text)
        return f"{self.tag} {text}" if self.tag else text

    def split(
        self, requests: Sequence[Request], options: Options, *, recase: bool = True
    ) -> list[Translation]:
        """Return a translation for each request, with segments to search, or an error.

        recase: read texts in UPPER and Title Case in lower case.
        """
        translations = []
        whole = self._whole([x.text for x in requests], options.glossary, recase=recase)
        for request, segment in zip(requests, whole, strict=True):
            try:
                segments = self._segments(request, segment, options)
                references = self._references(request.references, segment)
                translations.append(
                    Translation(request, references=references, whole=segment, segments=segments)
                )
            except UserError as error:
                translations.append(Translation(request, error=str(error)))
        return translations

    def _segments(self, request: Request, whole: Segment, options: Options) -> list[Segment]:
        if not request.text.strip() or not whole.source or whole.masked.only_spans():
            return []
        prefix: list[str] = []
        if request.prefix:
            [prefix] = self.target.encode_pieces([self._as_written(request.prefix, whole)])
        segments = [whole]
        if options.paragraphs or len(whole.source) > self.max_len:
            segments = self._split(whole.masked)
        if len(segments) > 1:
            problem = (
                f"a line of {len(request.text)} characters exceeds the maximum source length of "
                f"{self.max_len} tokens"
            )
            if request.prefix or request.references or request.constraints:
                problem = "a line of several sentences" if options.paragraphs else problem
                raise UserError(f"{problem}; with a prefix, terms or references it cannot be split")
            if not options.paragraphs:
                logger.warning("%s; translated in %d parts", problem, len(segments))
        for number, segment in enumerate(segments):
            terms = list(map(Term, request.constraints))
            terms += options.glossary.terms(segment.text) if options.glossary else []
            segment.terms = tuple(dict.fromkeys(map(self._encode_term, terms)))
            segment.prefix, segment.seed = prefix, (request.number, number)
            required = [*prefix, *(token for term in segment.terms for token in term.tokens)]
            self._require_short("the prefix, with terms,", required)
        return segments

    def _split(self, masked: Masked, separator: str = "") -> list[Segment]:
        """Return the sentences of a text. A sentence that is too long is split near its middle."""
        separators, parts, num_spans = [], list[Masked](), 0
        for space, text in sentences(masked.text, self.language):
            separators.append(space if parts else separator + space)
            parts.append(masked.part(text, num_spans))
            num_spans += len(parts[-1].spans)
        segments = []
        for space, part, segment in zip(separators, parts, self._encode(parts), strict=True):
            if len(segment.source) <= self.max_len or len(part.text) == 1:
                segment.separator = space
                segments.append(segment)
                continue
            start, end = middle(part.text)
            first = part.part(part.text[:start], 0)
            second = part.part(part.text[end:], len(first.spans))
            segments += self._split(first, space)
            segments += self._split(second, part.text[start:end])
        return segments

    def _as_written(self, text: str, segment: Segment) -> str:
        """Return a given translation as the model writes it."""
        spans = span_ranges(text, self.pattern)
        if segment.recase and recase_outside(text, segment.recase, spans) == text:
            text = self._in_lower_case(text, segment.recase)
        if self.pattern and self.has_symbols:
            return segment.masked.mask(text, self.pattern)
        return text

    def _references(self, texts: Sequence[str], segment: Segment) -> list[Hypothesis]:
        """Return references to score."""
        masked = [self._as_written(text, segment) for text in texts]
        rows = self.target.encode_pieces(masked) if texts else []
        self._require_short("a reference", *rows)
        return [Hypothesis(pieces, text=text) for pieces, text in zip(rows, texts, strict=True)]

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


def middle(text: str) -> tuple[int, int]:
    """Return start and end of the space near the middle of a text where it can be split.

    It follows a punctuation mark in the middle half, else is any space, else empty.
    """
    middle = len(text) / 2
    for pattern, max_distance in ((_SENTENCE_END, len(text) / 4), (_SPACE, middle)):
        spans = [match.span() for match in pattern.finditer(text, 1, len(text) - 1)]
        start, end = min(spans, key=lambda span: abs(span[0] - middle), default=(0, 0))
        if start and abs(start - middle) <= max_distance:
            return start, end
    return int(middle), int(middle)
