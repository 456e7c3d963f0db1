"""Lines of UTF-8 text from plain and gzipped files."""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from seq2seq.errors import UserError


def read_lines(
    stream: Iterable[bytes], name: str, *, errors: str = "strict", first: int = 1
) -> Iterator[str]:
    r"""Decode UTF-8 lines, split at \n only, and strip their line ends (\n or \r\n).

    A byte order mark at the start of the file is removed. errors: `strict` raises UserError with
    name and line number, `replace` inserts U+FFFD. first: number of the first line.
    """
    for number, line in enumerate(stream, start=first):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        try:
            yield line.decode("utf-8", errors)
        except UnicodeDecodeError as error:
            utf16 = number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
            raise UserError(
                f"{name}, line {number}: not UTF-8 (byte {error.start + 1} is "
                f"0x{line[error.start]:02x}); convert the file: iconv -f "
                f"{'UTF-16' if utf16 else 'WINDOWS-1252'} -t UTF-8, if that is what it is in"
            ) from None


@contextmanager
def open_bytes(path: Path) -> Iterator[Any]:
    """Open a file for reading bytes, decompressing it if it ends in .gz.

    Raises UserError, with the name, for a truncated or invalid gzip file.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            yield stream
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is not a complete gzip file ({error}): copy it again") from None


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a file or pipe."""
    with open_bytes(path) as stream:
        yield from read_lines(stream, str(path))


def read_file(path: Path) -> list[str]:
    """Return all lines of a file that fits into memory, such as translations and references."""
    return list(lines_of(path))


def require_files(paths: Iterable[Path]) -> None:
    """Raise UserError for a missing file or a folder."""
    for path in paths:
        if not path.exists():
            raise UserError(f"file not found: {path}")
        if path.is_dir():
            raise UserError(f"{path} is a folder; name files")
