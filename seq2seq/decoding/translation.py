"""Requests and their translations."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seq2seq.decoding.alignment import WORDS
from seq2seq.decoding.terms import Glossary
from seq2seq.documents.formats import Document
from seq2seq.text.language import TOKENS

logger = logging.getLogger(__name__)

END = "</s>"
"""Name of the end symbol in the list of tokens of a JSON line."""
SPANS = "protected spans: %d, lost or repeated and then repaired: %d"
"""Message about the spans of all translations."""


@dataclass(frozen=True)
class Options:
    """Options of `Translator.translations`; see there for their meaning."""

    nbest: int = 1
    scores: bool = True
    tokens: bool = False
    alignment: bool = False
    search: bool = True
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
    to: str = ""
    """Target language; empty for the only one of a model."""
    source: str = ""
    """Source language. It selects the rules for sentences; empty to identify it."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """All fields of a JSON line."""

    def __len__(self) -> int:
        """Number of characters."""
        return len(self.text)

    @property
    def is_whole(self) -> bool:
        """Whether the text cannot be split: something is given for all of its translation."""
        return bool(self.prefix or self.constraints or self.references)


@dataclass(frozen=True)
class Candidate:
    """A translation of a request, or a reference, with its scores and alignment if requested.

    What was not requested is None or empty.
    """

    text: str
    pieces: Sequence[str] = ()
    """SentencePiece pieces, as the model has written them, without the last end symbol. End symbols
    separate the parts of a text that was split."""
    log_prob: float | None = None
    """Sum of the log-probabilities of the pieces and the end symbol, in nats."""
    score: float | None = None
    """log_prob divided by the length penalty; higher is better. The score of a text translated in
    parts is the sum of their scores."""
    log_probs: Sequence[float] = ()
    """Log-probability of each piece and of the end symbol."""
    alignment: Sequence[tuple[int, int]] = ()
    """Links (source word, target word), counted from 0."""
    num_repaired: int = 0
    """Number of protected spans that the search lost or repeated."""


@dataclass(frozen=True)
class Translation:
    """Translations of a request, and scores of its references."""

    request: Request
    nbest: Sequence[Candidate] = ()
    """Translations, the best first; empty after an error or without a search."""
    references: Sequence[Candidate] = ()
    """References with their scores."""
    repeats: bool = False
    """Whether the best translation repeats itself."""
    terms: int = 0
    """Number of terms for the text; 0 after an error or without a search."""
    terms_kept: int = 0
    """Number of terms that the best translation contains."""
    spans: int = 0
    """Number of protected spans in the text; 0 after an error."""
    error: str | None = None
    """Reason why the text was not translated, or None."""

    @property
    def text(self) -> str:
        """Text of the best translation; empty after an error."""
        return self.nbest[0].text if self.nbest else ""

    @property
    def score(self) -> float | None:
        """Score of the best translation; None if not requested or after an error."""
        return self.nbest[0].score if self.nbest else None

    @property
    def spans_repaired(self) -> int:
        """Number of protected spans that the search of the best translation lost or repeated."""
        return self.nbest[0].num_repaired if self.nbest else 0

    @property
    def alignment(self) -> Sequence[tuple[int, int]]:
        """Word alignment of the best translation; empty if not requested or after an error."""
        return self.nbest[0].alignment if self.nbest else ()


def document_requests(
    document: Document,
    spans: re.Pattern[str] | None,
    glossary: Glossary | None = None,
    make: Callable[..., Request] = Request,
) -> tuple[list[Request], Options]:
    """Return a request for each block, and the options with which to translate them.

    spans: pattern of protected spans. Each is one word of the alignments. make: `Request`, perhaps
    with languages.
    """
    requests = [make(block.text, number) for number, block in enumerate(document.blocks)]
    has_markup = any(block.elements for block in document.blocks)  # alignment takes time
    return requests, Options(
        scores=False,
        alignment=has_markup,
        glossary=glossary,
        words=re.compile(f"{spans.pattern}|{TOKENS.pattern}") if spans else TOKENS,
    )


def write_document(
    document: Document, words: re.Pattern[str], translations: Sequence[Translation]
) -> str:
    """Return a document with the translation of each block. words: words of the alignments.

    A block that could not be translated stays as it is, with a warning.
    """
    for number, translation in enumerate(translations, start=1):
        if translation.error:
            logger.warning("block %d not translated: %s", number, translation.error)
    if count := sum(translation.spans for translation in translations):
        logger.info(SPANS, count, sum(translation.spans_repaired for translation in translations))
    return document.write(
        [
            block.place(block.text if result.error else result.text, result.alignment, words)
            for block, result in zip(document.blocks, translations, strict=True)
        ]
    )


def log_errors(translations: Sequence[Translation]) -> None:
    """Log a warning for each line that was not translated."""
    for translation in translations:
        if error := translation.error:
            logger.warning("line %d not translated: %s", translation.request.number + 1, error)
