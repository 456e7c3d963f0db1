"""Translation of documents: requests for their blocks, and documents with the translations."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from seq2seq.decoding.terms import Glossary
from seq2seq.decoding.translation import SPANS, Options, Request, Translation
from seq2seq.documents.formats import Document, decode_document, encode_document
from seq2seq.errors import UserError, named_output
from seq2seq.files import atomic_file
from seq2seq.text.language import TOKENS

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
    return document.translated(
        [
            (block.text if result.error else result.text, result.alignment)
            for block, result in zip(document.blocks, translations, strict=True)
        ],
        words,
    )


def translate_file(
    translate: Callable[[str], str], path: Path, output: Path | None, form: str
) -> None:
    """Translate a document file. output: standard output if None."""
    try:
        text, encoding = decode_document(path.read_bytes(), form)
        content = encode_document(translate(text), encoding, form)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    file = atomic_file(output) if output else nullcontext(sys.stdout.buffer)
    with named_output(output or "standard output"), file as stream:
        stream.write(content)
