"""Translation of document files."""

from __future__ import annotations

import sys
from pathlib import Path

from seq2seq.decoding.terms import Glossary
from seq2seq.decoding.translator import Translator
from seq2seq.documents.formats import decode_document, encode_document
from seq2seq.errors import UserError, named_output
from seq2seq.files import atomic_file


def translate_file(
    translator: Translator,
    path: Path,
    output: Path | None,
    form: str,
    glossary: Glossary | None = None,
) -> None:
    """Translate a document. output: standard output if None."""
    try:
        text, encoding = decode_document(path.read_bytes(), form)
        translated = translator.translate_document(text, format=form, glossary=glossary)
        content = encode_document(translated, encoding, form)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    if output is None:
        with named_output("standard output"):
            sys.stdout.buffer.write(content)
        return
    with named_output(output), atomic_file(output) as stream:
        stream.write(content)
