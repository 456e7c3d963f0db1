"""Requests to lines that can be searched: limits, terms as the tokenizer spells them, parts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.engine import Query
from seq2seq.decoding.request import Request
from seq2seq.decoding.segments import Segment, split_text
from seq2seq.decoding.terms import Glossary, Term, contradiction
from seq2seq.errors import UserError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Line:
    """A request with the parts of its text: ids, text and separator of each."""

    request: Request
    parts: tuple[tuple[list[int], str, str], ...]
    error: str | None = None
    """Why it cannot be searched or scored."""


class LineReader:
    """Checks requests and splits their texts."""

    def __init__(
        self, tokenizer: Tokenizer, tag: str | None, max_len: int, max_target_len: int
    ) -> None:
        """max_len: tokens of a part of a text. max_target_len: of a prefix or a reference."""
        self.tokenizer, self.tag = tokenizer, tag
        self.max_len, self.max_target_len = max_len, max_target_len

    def tagged(self, text: str) -> str:
        """Return a text after the tag, if there is one."""
        return f"{self.tag} {text}" if self.tag else text

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, with the tag's."""
        [ids] = self.tokenizer.source.encode([self.tagged(text)])
        return ids

    def read(self, requests: Sequence[Request], *, split: bool) -> list[Line]:
        """Return lines that can be searched, or the reason why they cannot."""
        # In one call: it costs a hundred times as much for each text alone.
        rows = self.tokenizer.source.encode([self.tagged(request.text) for request in requests])
        return [
            self._read(request, ids, split=split)
            for request, ids in zip(requests, rows, strict=True)
        ]

    def _read(self, request: Request, ids: list[int], *, split: bool) -> Line:
        try:
            if request.terms:
                request = replace(request, terms=tuple(map(self._spelled, request.terms)))
            if request.terms or request.prefix or request.references:
                self._check(request)
            if not request.text.strip() or not ids:
                return Line(request, ())
            if len(ids) <= self.max_len:
                return Line(request, ((ids, request.text, ""),))
            parts = split_text(request.text, self.encode, self.max_len)
            if len(parts) > 1:
                self._check_parts(request, len(parts), split=split)
        except UserError as error:
            return Line(request, (), str(error))
        return Line(request, tuple(parts))

    def _spelled(self, term: Term) -> Term:
        """Return a term as the tokenizer spells it, which may normalise characters."""
        target = self.tokenizer.target
        [ids] = target.encode([term.text])
        [text] = target.decode([ids])
        if not text.strip() or target.unk_id in ids:
            raise UserError(f"the term {term.text!r} cannot be written with this model's tokenizer")
        return term if text == term.text else replace(term, text=" ".join(text.split()))

    def _check(self, request: Request) -> None:
        """Raise UserError for terms that contradict each other, and for texts over the limit."""
        if problem := contradiction(request.terms):
            raise UserError(f"terms contradict each other: {problem}")
        forbidden = [term for term in request.terms if not term.required]
        if within := next((term for term in forbidden if term.appears("", request.prefix)), None):
            raise UserError(f"the prefix contains {within.text!r}, which must not appear")
        required = [term.text for term in request.terms if term.required]
        beginning = self.tokenizer.target.encode([request.prefix, *required])
        texts = {"prefix and terms": sum(map(len, beginning))}
        texts |= {
            f"reference {number}": len(ids)
            for number, ids in enumerate(self.tokenizer.target.encode(request.references), start=1)
        }
        for name, length in texts.items():
            if length > self.max_target_len:
                raise UserError(
                    f"{name}: {length} tokens exceed the maximum length of {self.max_target_len}"
                )

    def _check_parts(self, request: Request, count: int, *, split: bool) -> None:
        problem = (
            f"a line of {len(request.text)} characters exceeds the maximum source length of "
            f"{self.max_len} tokens"
        )
        if not split:
            raise UserError(problem)
        own_terms = any(not term.source for term in request.terms)
        if request.prefix or own_terms or request.references:
            raise UserError(f"{problem}; with a prefix, terms or references it cannot be split")
        logger.warning("%s; translated in %d parts", problem, count)

    def segments(self, number: int, line: Line) -> list[Segment]:
        """Return the parts of a line with their queries; number: of the line among others."""
        request, parts = line.request, line.parts
        [prefix] = self.tokenizer.target.encode([request.prefix]) if request.prefix else [[]]
        terms = [request.terms] * len(parts)
        if len(parts) > 1 and request.terms:  # all of them are a glossary's
            glossary = Glossary((term.source, term) for term in request.terms)
            terms = [tuple(glossary.terms(text)) for _, text, _ in parts]
        return [
            Segment(
                number,
                text,
                Query(ids, prefix, own, seed=(request.number, i)),
                separator if i else "",
            )
            for i, ((ids, text, separator), own) in enumerate(zip(parts, terms, strict=True))
        ]
