"""Splits requests into segments for the search, and joins the translations of the segments."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.alignment import WORDS, repeats_itself
from seq2seq.decoding.terms import Glossary, Term
from seq2seq.errors import UserError
from seq2seq.text.protect import SYMBOLS, Masked, mask
from seq2seq.text.sentences import sentences

_SENTENCE_END = re.compile(r"(?<=[.!?;:。！？])\s+|(?<=[。！？])")
_SPACE = re.compile(r"\s+")

logger = logging.getLogger(__name__)


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
        own = text if self.has_symbols else self.text
        before = text[:place] if self.has_symbols else self.masked.restore(text[:place])
        start = len(self.source_text) - len(own) + len(before)
        return start, start + (1 if self.has_symbols else len(self.masked.spans[index][1]))


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
    spans: int = 0
    """Number of protected spans in the text."""
    error: str | None = None
    """Reason why the text was not translated, or None."""
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
        ranks = zip(*(segment.hypotheses for segment in self.segments), strict=False)
        joined = [_join(self.segments, hypotheses, words) for hypotheses in ranks]
        # Samples are in the order in which they were drawn.
        self.nbest = sorted(joined, key=lambda x: -x.score)
        if not self.nbest:  # blank, or nothing but protected spans
            self.nbest = [Hypothesis([], 0.0, 0.0, text=self.request.text if self.spans else "")]
        source = [piece for segment in self.segments for piece in segment.source]
        self.repeats = repeats_itself(source, self.nbest[0].pieces)
        terms = {term for segment in self.segments for term in segment.terms}
        self.terms = len(terms)
        self.terms_kept = sum(term.kept(self.text) for term in terms)
        self.segments = ()


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
        self.max_len, self.max_target_len = max_len, max_target_len

    def segment(self, text: str) -> Segment:
        """Return a text as one segment."""
        [segment] = self._whole([text])
        return segment

    def _whole(self, texts: Sequence[str]) -> list[Segment]:
        """Return each text as one segment."""
        masked = [mask(x, self.pattern) if self.pattern else Masked(x) for x in texts]
        read = [self._read(x) for x in masked]
        # A call for each text would be a hundred times as slow.
        rows = self.source.encode_pieces(read)
        return [
            Segment(row, masked=x, source_text=text, has_symbols=self.has_symbols)
            for row, x, text in zip(rows, masked, read, strict=True)
        ]

    def _read(self, masked: Masked) -> str:
        """Return what the model reads: the tag, if any, and the text."""
        text = masked.text
        if masked.spans and not self.has_symbols:
            text = masked.restore(text)
        return f"{self.tag} {text}" if self.tag else text

    def split(self, requests: Sequence[Request], options: Options) -> list[Translation]:
        """Return a translation for each request, with segments to search, or an error."""
        translations = []
        whole = self._whole([request.text for request in requests])
        for request, segment in zip(requests, whole, strict=True):
            try:
                segments = self._segments(request, segment, options)
                references = self._references(request.references, segment)
                spans = len(segment.masked.spans)
                translations.append(
                    Translation(request, (), references, spans=spans, segments=segments)
                )
            except UserError as error:
                translations.append(Translation(request, error=str(error)))
        return translations

    def _segments(self, request: Request, whole: Segment, options: Options) -> list[Segment]:
        if not request.text.strip() or not whole.source or whole.masked.only_spans():
            return []
        prefix: list[str] = []
        if request.prefix:
            [prefix] = self.target.encode_pieces([self._mask_target(request.prefix, whole)])
        segments = [whole]
        if options.paragraphs or len(whole.source) > self.max_len:
            segments = self._split(whole, by_sentence=options.paragraphs)
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

    def _split(self, whole: Segment, *, by_sentence: bool) -> list[Segment]:
        """Split a segment that is too long, or has several sentences."""
        masked = whole.masked

        def encode(text: str) -> list[str]:
            [pieces] = self.source.encode_pieces([self._read(replace(masked, text=text))])
            return pieces

        parts = [("", masked.text)]
        if by_sentence:
            parts = sentences(masked.text, self.language)
        segments, start = [], 0
        for separator, part in parts:
            for segment in split_text(part, encode, self.max_len, separator):
                segment.masked = masked.part(segment.masked.text, start)
                segment.source_text = self._read(segment.masked)
                segment.has_symbols = self.has_symbols
                start += len(segment.masked.spans)
                segments.append(segment)
        return segments

    def _mask_target(self, text: str, segment: Segment) -> str:
        """Return a given translation as the model writes it."""
        use = self.pattern and self.has_symbols
        return segment.masked.mask(text, self.pattern) if use and self.pattern else text

    def _references(self, texts: Sequence[str], segment: Segment) -> list[Hypothesis]:
        """Return references to score."""
        masked = [self._mask_target(text, segment) for text in texts]
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


def split_text(
    text: str, encode: Callable[[str], list[str]], max_len: int, separator: str = ""
) -> list[Segment]:
    """Split a text recursively, near its middle, into segments of at most `max_len` tokens.

    Splits after a punctuation mark in the middle half, else at a space, else within a word. A blank
    text has no segments.
    """
    pieces = encode(text) if text.strip() else []
    if not pieces:
        return []
    if len(pieces) <= max_len or len(text) == 1:
        return [Segment(pieces, masked=Masked(text), separator=separator)]
    middle = len(text) / 2
    for pattern, max_distance in ((_SENTENCE_END, len(text) / 4), (_SPACE, middle)):
        spans = [match.span() for match in pattern.finditer(text, 1, len(text) - 1)]
        start, end = min(spans, key=lambda span: abs(span[0] - middle), default=(0, 0))
        if start and abs(start - middle) <= max_distance:
            break
    else:
        start = end = int(middle)
    gap = " " if end > start else ""
    first = split_text(text[:start], encode, max_len, separator)
    return first + split_text(text[end:], encode, max_len, gap)


def _join(
    segments: Sequence[Segment], hypotheses: Sequence[Hypothesis], words: re.Pattern[str]
) -> Hypothesis:
    """Join the translations of all segments of a text, one hypothesis per segment."""
    if len(segments) == 1 and not segments[0].separator:
        return hypotheses[0]
    source = text = ""
    links: list[tuple[int, int]] = []
    for segment, part in zip(segments, hypotheses, strict=True):
        source += segment.separator + segment.text
        text += segment.separator + part.text
        # Number of words before this segment. Its first word may continue a word.
        i0, j0 = (
            len(words.findall(whole)) - len(words.findall(own))
            for whole, own in ((source, segment.text), (text, part.text))
        )
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
