"""Translation of files and pipes: what has arrived is translated, and written at once."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from seq2seq.data.corpus import open_bytes, read_lines
from seq2seq.decoding.translator import LINES_AT_ONCE, Translator
from seq2seq.errors import UserError

READ_BYTES = 1 << 16


def arriving_lines(stream: IO[bytes]) -> Iterator[list[bytes]]:
    r"""Yield the lines that a pipe holds, without their \n, whenever it holds any.

    Waits only when there is none: a writer that sends a line and waits is not made to wait, and a
    full pipe is emptied some thousands of lines at a time.
    """
    descriptor = stream.fileno()
    rest, lines = b"", []
    while chunk := os.read(descriptor, READ_BYTES):
        *whole, rest = (rest + chunk).split(b"\n")
        lines += whole
        while len(lines) >= LINES_AT_ONCE:
            yield lines[:LINES_AT_ONCE]
            lines = lines[LINES_AT_ONCE:]
        if lines and not _has_more(descriptor):
            yield lines
            lines = []
    if rest:
        lines.append(rest)
    if lines:
        yield lines


def _has_more(descriptor: int) -> bool:
    try:
        return bool(select.select([descriptor], [], [], 0)[0])
    except (OSError, ValueError):  # Windows selects sockets alone; then every read is an answer
        return False


def translate_streams(
    translator: Translator,
    files: Sequence[str],
    output: Path | None,
    *,
    errors: str = "strict",
    tag: str | None = None,
) -> None:
    """Translate files, or standard input, to a file or standard output, line by line in order."""
    paths = [Path(name) for name in files]
    for path in paths:
        if not path.is_file():
            raise UserError(f"file not found: {path}")
        if output is not None and output.exists() and output.samefile(path):
            raise UserError(f"{output} would be overwritten while it is read; name another -o")
    with ExitStack() as stack:
        sink = sys.stdout.buffer
        if output is not None:
            try:
                sink = stack.enter_context(output.open("wb"))
            except OSError as error:
                raise UserError(f"{output} cannot be written: {error.strerror}") from None
        for block in _blocks(paths, errors):
            if tag:
                block = [f"{tag} {line}" if line.strip() else line for line in block]
            for translation in translator.translate(block):
                sink.write(translation.encode() + b"\n")
            sink.flush()


def _blocks(paths: Sequence[Path], errors: str) -> Iterator[list[str]]:
    if not paths:
        number = 0
        for lines in arriving_lines(sys.stdin.buffer):
            name = "standard input"
            yield list(read_lines(lines, name, errors=errors, first=number + 1))
            number += len(lines)
    for path in paths:
        with open_bytes(path) as stream:
            block: list[str] = []
            for line in read_lines(stream, str(path), errors=errors):
                block.append(line)
                if len(block) == LINES_AT_ONCE:
                    yield block
                    block = []
            if block:
                yield block
