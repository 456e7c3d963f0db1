"""Requests for the blocks of a document, and the document with their translations."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from seq2seq.decoding.segments import Options, Request, Translation
from seq2seq.decoding.spans import SPANS
from seq2seq.decoding.terms import Glossary
from seq2seq.documents.formats import Document
from seq2seq.text.words import TOKENS

logger = logging.getLogger(__name__)


def document_requests(
    document: Document, glossary: Glossary | None = None
) -> tuple[list[Request], Options]:
    """Return a request for each block, and the options with which to translate them."""
    requests = [Request(block.text, number) for number, block in enumerate(document.blocks)]
    has_markup = any(block.elements for block in document.blocks)  # alignment takes time
    return requests, Options(
        scores=False, alignment=has_markup, paragraphs=True, glossary=glossary, words=TOKENS
    )


def write_document(document: Document, translations: Sequence[Translation]) -> str:
    """Return a document with the translation of each block.

    A block that could not be translated stays as it is, with a warning.
    """
    for number, translation in enumerate(translations, start=1):
        if translation.error:
            logger.warning("block %d not translated: %s", number, translation.error)
    if count := sum(translation.spans for translation in translations):
        logger.info(SPANS, count, sum(translation.spans_repaired for translation in translations))
    return document.translated(
        [
            block.unchanged() if result.error else (result.text, result.alignment)
            for block, result in zip(document.blocks, translations, strict=True)
        ]
    )
