"""Requests, checked and split into parts that can be searched, and their translations joined."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.alignment import repeats_itself
from seq2seq.decoding.hypothesis import Hypothesis
from seq2seq.decoding.options import Options
from seq2seq.decoding.terms import Term
from seq2seq.errors import UserError

_SENTENCE_END = re.compile(r"(?<=[.!?;:。！？])\s+|(?<=[。！？])")
_SPACE = re.compile(r"\s+")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """A line to translate."""

    text: str
    number: int = 0
    """The line's number, from 0: samples depend on it."""
    prefix: str = ""
    """Beginning of the translation."""
    constraints: tuple[str, ...] = ()
    """Terms that must appear in the translation."""
    references: tuple[str, ...] = ()
    """Translations to score."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """All fields of a JSON line."""

    def __len__(self) -> int:
        return len(self.text)


def make_requests(
    texts: Sequence[str],
    prefixes: Sequence[str] | None,
    constraints: Sequence[Sequence[str]] | None,
    references: Sequence[Sequence[str]] | None,
) -> list[Request]:
    """Return a request for each text, with its entry of each list."""
    if isinstance(texts, str):
        raise TypeError("a translator takes a list of texts; write translate([text])[0]")
    count = len(texts)
    lists = {"prefixes": prefixes, "constraints": constraints, "references": references}
    for name, given in lists.items():
        if given is not None and len(given) != count:
            raise UserError(f"{name} has {len(given)} entries for {count} texts")
        if name != "prefixes" and any(isinstance(entry, str) for entry in given or ()):
            raise TypeError(f"{name} has a list of strings for each text, such as {name}=[['a']]")
    columns = zip(
        texts,
        prefixes or [""] * count,
        constraints or [()] * count,
        references or [()] * count,
        strict=True,
    )
    return [
        Request(text, number, prefix, tuple(terms), tuple(given))
        for number, (text, prefix, terms, given) in enumerate(columns)
    ]


@dataclass
class Segment:
    """A text, or a part of one that is too long, and its translations."""

    source: list[str]
    """Pieces of the text."""
    prefix: list[str] = field(default_factory=list)
    """Pieces that the translation starts with."""
    terms: tuple[Term, ...] = ()
    seed: tuple[int, ...] = (0,)
    """Of the samples."""
    text: str = ""
    separator: str = ""
    """Text between this segment and the previous one."""
    found: list[Hypothesis] = field(default_factory=list)
    """The best first."""


@dataclass
class Translation:
    """A request, its translations, the best first, and its scored references."""

    request: Request
    nbest: Sequence[Hypothesis] = ()
    """Empty after an error, and without a search."""
    references: Sequence[Hypothesis] = ()
    repeats: bool = False
    """Whether the best translation repeats itself."""
    terms: int = 0
    """Number of terms of a text that was translated."""
    terms_kept: int = 0
    """Number of these that are in the best translation."""
    error: str | None = None
    """Why the text was not translated."""
    segments: Sequence[Segment] = ()
    """The parts of the text during the search; none of a blank text."""

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

    def join(self) -> None:
        """Join the translations of the segments."""
        if self.error:
            return
        ranks = zip(*(segment.found for segment in self.segments), strict=False)
        self.nbest = [_joined(self.segments, parts) for parts in ranks]
        if not self.segments:
            self.nbest = [Hypothesis([], 0.0, 0.0)]
        self.repeats = any(
            repeats_itself(segment.source, best.pieces)
            for segment in self.segments
            for best in segment.found[:1]
        )
        terms = {term for segment in self.segments for term in segment.terms}
        self.terms = len(terms)
        self.terms_kept = sum(term.kept(self.text) for term in terms)
        self.segments = ()


class Segmenter:
    """Checks requests and splits their texts."""

    def __init__(
        self, tokenizer: Tokenizer, tag: str | None, max_len: int, max_target_len: int
    ) -> None:
        """max_len: tokens of a segment. max_target_len: of a prefix or a reference."""
        self.source, self.target = tokenizer.sentence_pieces
        self.tag = tag
        self.max_len, self.max_target_len = max_len, max_target_len

    def tagged(self, text: str) -> str:
        """Return a text after the tag, if there is one."""
        return f"{self.tag} {text}" if self.tag else text

    def encode(self, text: str) -> list[str]:
        """Return the pieces of a text, with the tag."""
        [pieces] = self.source.encode_pieces([self.tagged(text)])
        return pieces

    def segmented(self, requests: Sequence[Request], options: Options) -> list[Translation]:
        """Return the segments of requests, or the reason why they cannot be searched."""
        # In one call: it costs a hundred times as much for each text alone.
        rows = self.source.encode_pieces([self.tagged(request.text) for request in requests])
        translations = []
        for request, pieces in zip(requests, rows, strict=True):
            try:
                segments = self._segments(request, pieces, options)
                translations.append(Translation(request, segments=segments))
            except UserError as error:
                translations.append(Translation(request, error=str(error)))
        return translations

    def _segments(self, request: Request, pieces: list[str], options: Options) -> list[Segment]:
        self._require_short("a reference", *self.target.encode(request.references))
        if not request.text.strip() or not pieces:
            return []
        [prefix] = self.target.encode_pieces([request.prefix]) if request.prefix else [[]]
        parts = [(pieces, request.text, "")]
        if len(pieces) > self.max_len:
            parts = split_text(request.text, self.encode, self.max_len)
        if len(parts) > 1:
            problem = (
                f"a line of {len(request.text)} characters exceeds the maximum source length of "
                f"{self.max_len} tokens"
            )
            if not options.split:
                raise UserError(problem)
            if request.prefix or request.references or request.constraints:
                raise UserError(f"{problem}; with a prefix, terms or references it cannot be split")
            logger.warning("%s; translated in %d parts", problem, len(parts))
        segments = []
        for number, (own, text, separator) in enumerate(parts):
            terms = list(map(Term, request.constraints))
            terms += options.glossary.terms(text) if options.glossary else []
            spelled = tuple(dict.fromkeys(map(self._spelled, terms)))
            needed = [*prefix, *(token for term in spelled for token in term.tokens)]
            self._require_short("the prefix, with terms,", needed)
            seed = request.number, number
            segments.append(Segment(own, prefix, spelled, seed, text, separator))
        return segments

    def _spelled(self, term: Term) -> Term:
        """Return a term with its tokens, as the tokenizer spells it."""
        [ids] = self.target.encode([" ".join(term.text.split())])
        [text] = self.target.decode([ids])
        if not text.strip() or self.target.unk_id in ids:
            raise UserError(f"the term {term.text!r} cannot be written with this model's tokenizer")
        return replace(term, text=" ".join(text.split()), tokens=tuple(ids))

    def _require_short(self, name: str, *targets: Sequence[object]) -> None:
        if (length := max(map(len, targets), default=0)) > self.max_target_len:
            raise UserError(
                f"{name} has {length} tokens, above the maximum length of {self.max_target_len}"
            )


def split_text(
    text: str, encode: Callable[[str], list[str]], max_len: int, separator: str = ""
) -> list[tuple[list[str], str, str]]:
    """Split a text of more than `max_len` tokens near its middle, at a sentence end or a space.

    Returns pieces, text and separator before each part; nothing for a blank text.
    """
    pieces = encode(text) if text.strip() else []
    if not pieces:
        return []
    if len(pieces) <= max_len or len(text) == 1:
        return [(pieces, text, separator)]
    middle = len(text) / 2
    for pattern, reach in ((_SENTENCE_END, len(text) / 4), (_SPACE, middle)):
        cuts = [m.span() for m in pattern.finditer(text, 1, len(text) - 1)]
        start, end = min(cuts, key=lambda span: abs(span[0] - middle), default=(0, 0))
        if start and abs(start - middle) <= reach:
            break
    else:
        start = end = int(middle)
    gap = " " if end > start else ""
    first = split_text(text[:start], encode, max_len, separator)
    return first + split_text(text[end:], encode, max_len, gap)


def _joined(segments: Sequence[Segment], found: Sequence[Hypothesis]) -> Hypothesis:
    """Join one translation of each segment."""
    if len(segments) == 1:
        return found[0]
    source = text = ""
    links: list[tuple[int, int]] = []
    for segment, one in zip(segments, found, strict=True):
        source += segment.separator + segment.text
        text += segment.separator + one.text
        # The words before its own; it may continue the last of them.
        i0 = len(source.split()) - len(segment.text.split())
        j0 = len(text.split()) - len(one.text.split())
        links += [(i + i0, j + j0) for i, j in one.alignment]
    return Hypothesis(
        [piece for one in found for piece in one.pieces],
        sum(one.log_prob for one in found),
        sum(one.score for one in found),
        text=text,
        log_probs=[each for one in found for each in one.log_probs],
        alignment=list(dict.fromkeys(links)),
    )
