"""Translation of document files."""

from __future__ import annotations

import sys
from pathlib import Path

from seq2seq.decoding.terms import Glossary
from seq2seq.decoding.translator import Translator
from seq2seq.documents.formats import decode_document
from seq2seq.errors import UserError, named_output
from seq2seq.files import atomic_file


def translate_bytes(
    translator: Translator, content: bytes, form: str, glossary: Glossary | None = None
) -> bytes:
    """Return a translated document in the encoding that it declares."""
    text, encoding = decode_document(content)
    translated = translator.translate_document(text, format=form, glossary=glossary)
    # XML and HTML can refer to characters that the encoding lacks.
    return translated.encode(encoding, "xmlcharrefreplace" if "ml" in form else "strict")


def translate_file(
    translator: Translator,
    path: Path,
    output: Path | None,
    form: str,
    glossary: Glossary | None = None,
) -> None:
    """Translate a document. output: standard output if None."""
    try:
        content = translate_bytes(translator, path.read_bytes(), form, glossary)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    if output is None:
        with named_output("standard output"):
            sys.stdout.buffer.write(content)
        return
    with named_output(output), atomic_file(output) as stream:
        stream.write(content)
