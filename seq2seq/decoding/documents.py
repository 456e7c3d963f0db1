"""Requests for the blocks of a document, and the document with their translations."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from seq2seq.decoding.segments import Options, Request, Translation
from seq2seq.decoding.spans import SPANS
from seq2seq.decoding.terms import Glossary
from seq2seq.documents.formats import Document
from seq2seq.text.words import TOKENS

logger = logging.getLogger(__name__)


def document_requests(
    document: Document, spans: re.Pattern[str] | None, glossary: Glossary | None = None
) -> tuple[list[Request], Options]:
    """Return a request for each block, and the options with which to translate them.

    spans: pattern of protected spans. Each is one word of the alignments.
    """
    requests = [Request(block.text, number) for number, block in enumerate(document.blocks)]
    has_markup = any(block.elements for block in document.blocks)  # alignment takes time
    return requests, Options(
        scores=False,
        alignment=has_markup,
        paragraphs=True,
        glossary=glossary,
        words=_words(spans),
    )


def _words(spans: re.Pattern[str] | None) -> re.Pattern[str]:
    return re.compile(f"{spans.pattern}|{TOKENS.pattern}") if spans else TOKENS


def write_document(
    document: Document, spans: re.Pattern[str] | None, translations: Sequence[Translation]
) -> str:
    """Return a document with the translation of each block.

    A block that could not be translated stays as it is, with a warning.
    """
    words = _words(spans)
    for number, translation in enumerate(translations, start=1):
        if translation.error:
            logger.warning("block %d not translated: %s", number, translation.error)
    if count := sum(translation.spans for translation in translations):
        logger.info(SPANS, count, sum(translation.spans_repaired for translation in translations))
    return document.translated(
        [
            block.unchanged(words)
            if result.error or result.text == block.text
            else (result.text, result.alignment)
            for block, result in zip(document.blocks, translations, strict=True)
        ],
        words,
    )
