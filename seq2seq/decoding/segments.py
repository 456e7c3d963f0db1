"""Requests, their segments on the way through the search, and translations."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from seq2seq.decoding.alignment import WORDS, repeats_itself
from seq2seq.decoding.terms import Glossary, Term
from seq2seq.errors import UserError
from seq2seq.text.case import Recase
from seq2seq.text.protect import SYMBOLS, Masked

END = "</s>"
"""Name of the end symbol in the list of tokens of a JSON line."""


@dataclass(frozen=True)
class Options:
    """Options of `Translator.translations` that are not keys of the section `decoding`.

    See there for their meaning.
    """

    nbest: int = 1
    scores: bool = True
    tokens: bool = False
    alignment: bool = False
    search: bool = True
    paragraphs: bool = False
    glossary: Glossary | None = None
    words: re.Pattern[str] = WORDS
    """Words that `alignment` links."""


@dataclass(frozen=True)
class Request:
    """A line to translate."""

    text: str
    number: int = 0
    """Line number, from 0. Samples depend on it."""
    prefix: str = ""
    """Beginning of the translation."""
    constraints: tuple[str, ...] = ()
    """Terms that must appear in the translation."""
    references: tuple[str, ...] = ()
    """Translations to score."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """All fields of a JSON line."""

    def __len__(self) -> int:
        """Number of characters."""
        return len(self.text)


def make_requests(
    texts: Sequence[str],
    prefixes: Sequence[str] | None,
    constraints: Sequence[Sequence[str]] | None,
    references: Sequence[Sequence[str]] | None,
) -> list[Request]:
    """Return a request for each text and the corresponding entries of the lists."""
    if isinstance(texts, str):
        raise TypeError("texts must be a list, not a string; write translate([text])[0]")
    count = len(texts)
    prefixes = prefixes or [""] * count
    constraints, references = constraints or [()] * count, references or [()] * count
    lists = {"prefixes": prefixes, "constraints": constraints, "references": references}
    for name, entries in lists.items():
        if len(entries) != count:
            raise UserError(f"{name} has length {len(entries)}, but texts has length {count}")
        if name != "prefixes" and any(isinstance(entry, str) for entry in entries):
            raise TypeError(f"{name} needs a list of strings for each text, such as [['a']]")
    return [
        Request(text, number, prefix, tuple(terms), tuple(targets))
        for number, (text, prefix, terms, targets) in enumerate(
            zip(texts, prefixes, constraints, references, strict=True)
        )
    ]


@dataclass
class Hypothesis:
    """A translation as SentencePiece pieces, with its scores and alignment if requested."""

    pieces: list[str]
    """SentencePiece pieces without the end symbol."""
    log_prob: float = math.nan
    """Sum of the log-probabilities of the pieces and the end symbol, in nats."""
    score: float = math.nan
    """log_prob divided by the length penalty; higher is better. The score of a text translated in
    parts is the sum of their scores."""
    text: str = ""
    log_probs: Sequence[float] = ()
    """Log-probability of each piece and of the end symbol."""
    alignment: Sequence[tuple[int, int]] = ()
    """Links (source word, target word), counted from 0."""
    num_repaired: int = 0
    """Number of protected spans that the search lost or repeated."""


@dataclass
class Segment:
    """A text, or a part of a text that is too long, and its translations."""

    source: list[str]
    """Pieces of the text, including the tag."""
    prefix: list[str] = field(default_factory=list)
    """Pieces at the start of the translation."""
    terms: tuple[Term, ...] = ()
    seed: tuple[int, ...] = (0,)
    """Random seed of the samples: number of the line and of the segment."""
    masked: Masked = field(default_factory=lambda: Masked(""))
    """Text with symbols for protected spans."""
    source_text: str = ""
    """Text that the model reads, including the tag."""
    has_symbols: bool = True
    """Whether the model reads symbols. Otherwise it reads the spans themselves."""
    recase: Recase | None = None
    """Puts the translation in the text's case. The model reads the text in lower case."""
    separator: str = ""
    """Text between the previous segment and this segment."""
    hypotheses: list[Hypothesis] = field(default_factory=list)
    """Translations, the best first."""

    @property
    def text(self) -> str:
        """Text of the segment, without the tag."""
        return self.masked.restore(self.masked.text)

    def span_range(self, index: int) -> tuple[int, int]:
        """Return start and end of a protected span in `source_text`."""
        text = self.masked.text
        place = [i for i, character in enumerate(text) if character in SYMBOLS][index]
        read = str if self.has_symbols else self.masked.restore
        start = len(self.source_text) - len(read(text))
        return start + len(read(text[:place])), start + len(read(text[: place + 1]))


@dataclass
class Translation:
    """Translations of a request, and scores of its references."""

    request: Request
    nbest: Sequence[Hypothesis] = ()
    """Translations, the best first; empty after an error or without a search."""
    references: Sequence[Hypothesis] = ()
    """References with their scores."""
    repeats: bool = False
    """Whether the best translation repeats itself."""
    terms: int = 0
    """Number of terms for the text; 0 after an error or without a search."""
    terms_kept: int = 0
    """Number of terms that the best translation contains."""
    error: str | None = None
    """Reason why the text was not translated, or None."""
    whole: Segment | None = None
    """The text as one segment; None after an error."""
    segments: Sequence[Segment] = ()
    """Segments of the text during the search; empty for a blank text."""

    @property
    def text(self) -> str:
        """Text of the best translation; empty after an error."""
        return self.nbest[0].text if self.nbest else ""

    @property
    def score(self) -> float:
        """Score of the best translation; NaN after an error."""
        return self.nbest[0].score if self.nbest else math.nan

    @property
    def spans(self) -> int:
        """Number of protected spans in the text; 0 after an error."""
        return len(self.whole.masked.spans) if self.whole else 0

    @property
    def spans_repaired(self) -> int:
        """Number of protected spans that the search of the best translation lost or repeated."""
        return self.nbest[0].num_repaired if self.nbest else 0

    @property
    def alignment(self) -> Sequence[tuple[int, int]]:
        """Word alignment of the best translation; empty if not requested or after an error."""
        return self.nbest[0].alignment if self.nbest else ()

    def join(self, words: re.Pattern[str] = WORDS) -> None:
        """Join the segments: sets `nbest`, `repeats` and the number of terms.

        words: words of the alignments.
        """
        if self.error:
            return
        ranks = list(zip(*(segment.hypotheses for segment in self.segments), strict=False))
        # Samples are in the order in which they were drawn.
        ranks.sort(key=lambda parts: -sum(part.score for part in parts))
        self.nbest = [_join(self.segments, parts, words) for parts in ranks]
        if not self.nbest:  # blank, or nothing but protected spans
            self.nbest = [Hypothesis([], 0.0, 0.0, text=self.request.text if self.spans else "")]
        best = ranks[0] if ranks else ()
        self.repeats = any(
            repeats_itself(segment.source, part.pieces)
            for segment, part in zip(self.segments, best, strict=True)
        )
        terms = {term for segment in self.segments for term in segment.terms}
        self.terms = len(terms)
        self.terms_kept = sum(term.kept(self.text) for term in terms)
        self.segments = ()


def _join(
    segments: Sequence[Segment], hypotheses: Sequence[Hypothesis], words: re.Pattern[str]
) -> Hypothesis:
    """Join the translations of all segments of a text, one hypothesis per segment."""
    if len(segments) == 1 and not segments[0].separator:
        return hypotheses[0]
    separators = [segment.separator for segment in segments]
    text, first_targets = join_texts(separators, [part.text for part in hypotheses], words)
    links: list[tuple[int, int]] = []
    if any(part.alignment for part in hypotheses):
        _, first_sources = join_texts(separators, [segment.text for segment in segments], words)
        for part, i0, j0 in zip(hypotheses, first_sources, first_targets, strict=True):
            links += [(i + i0, j + j0) for i, j in part.alignment]
    return Hypothesis(
        [piece for part in hypotheses for piece in part.pieces],
        sum(part.log_prob for part in hypotheses),
        sum(part.score for part in hypotheses),
        text=text,
        log_probs=[x for part in hypotheses for x in part.log_probs],
        alignment=list(dict.fromkeys(links)),
        num_repaired=sum(part.num_repaired for part in hypotheses),
    )


def join_texts(
    separators: Sequence[str], texts: Sequence[str], words: re.Pattern[str]
) -> tuple[str, list[int]]:
    """Return the joined texts, and the index of the first word of each.

    The first word of a text may continue the last word of the text before it.
    """
    parts = [part for pair in zip(separators, texts, strict=True) for part in pair]
    joined, starts = "".join(parts), list(accumulate(map(len, parts)))[::2]
    ends = [word.end() for word in words.finditer(joined)]
    return joined, [bisect_right(ends, start) for start in starts]
