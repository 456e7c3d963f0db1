"""Lines of text and JSON, read from files and pipes, and written as soon as they are available."""

from __future__ import annotations

import codecs
import gzip
import json
import select
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from seq2seq.errors import UserError, named_output
from seq2seq.files import output_file
from seq2seq.processes import Processes

READ_BYTES = 1 << 16
LINES_AT_ONCE = 10_000
"""Approximate number of lines that are processed together."""

LineFunction = Callable[[Sequence[Any]], list[str]]
"""Maps input lines, parsed by a `LineReader`, to output lines, one per input line."""
LineReader = Callable[[str, str], Any]
"""Parses an input line; the second argument is its file and line number, for error messages."""


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


def count_lines(files: Sequence[Path]) -> int | None:
    """Return the number of lines of files; None if not all are regular files."""
    if not files or not all(path.is_file() for path in files):
        return None
    count = 0
    for path in files:
        with open_bytes(path) as stream:
            count += sum(1 for _ in stream)
    return count


def read_object(line: str) -> dict[str, Any]:
    """Read a JSON object; raises ValueError, with the reason, for anything else.

    NaN, infinite numbers and lone surrogates are rejected: they could not be written again.
    """
    fields = json.loads(line)
    write_object(fields).encode()
    if not isinstance(fields, dict):
        raise ValueError("it is another JSON value")
    return fields


def write_object(fields: Mapping[str, Any]) -> str:
    """Return an object as one line, without line feed."""
    return json.dumps(fields, ensure_ascii=False, allow_nan=False)


def read_object_file(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """Read a file with one JSON object; {} if an optional file is missing."""
    if optional and not path.exists():
        return {}
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from None


def process_streams(
    function: LineFunction,
    files: Sequence[Path],
    output: Path | None,
    *,
    errors: str = "strict",
    processes: Processes,
    read: LineReader = lambda line, where: line,
    finish: Callable[[], None] = lambda: None,
) -> None:
    """Apply `function` to the lines of files or standard input and write the results in order.

    output: standard output if None. The main process reads and writes; all processes compute.
    finish: called after the last line.
    """
    if not processes.is_main:
        while (block := processes.broadcast(None)) is not None:
            map_sharded(function, block, processes)
        return
    with output_file(output) if output else nullcontext(sys.stdout.buffer) as sink:
        for path in files or (None,):
            for block in _blocks(path, errors, read):
                lines = map_sharded(function, processes.broadcast(block), processes)
                with named_output(output or "standard output"):
                    sink.writelines(line.encode() + b"\n" for line in lines)
                    sink.flush()
        finish()
    processes.broadcast(None)  # ends the loop of the other processes


def _blocks(path: Path | None, errors: str, read: LineReader) -> Iterator[list[Any]]:
    """Yield blocks of parsed lines of a file, or of standard input if `path` is None.

    Lines before an invalid line are yielded before the error.
    """
    name, first = str(path or "standard input"), 1
    with open_bytes(path) if path else nullcontext(sys.stdin.buffer) as stream:
        for lines in _available_lines(stream):
            block = []
            try:
                decoded = read_lines(lines, name, errors=errors, first=first)
                for number, line in enumerate(decoded, start=first):
                    block.append(read(line, f"{name}, line {number}"))
            except UserError:
                if block:
                    yield block
                raise
            yield block
            first += len(lines)


def _available_lines(stream: Any) -> Iterator[list[bytes]]:
    r"""Yield blocks of lines, without \n, of a file or of those available in a pipe.

    A writer that waits for the result of a line gets it at once. A file or a full pipe is read in
    blocks of some thousands of lines.
    """
    rest, lines = b"", []
    while chunk := stream.read1(READ_BYTES):
        *whole, rest = (rest + chunk).split(b"\n")
        lines += whole
        has_more = bool(select.select([stream], [], [], 0)[0])
        if len(lines) >= LINES_AT_ONCE or (lines and not has_more):
            yield lines
            lines = []
    if rest:
        lines.append(rest)
    if lines:
        yield lines


def map_sharded(function: LineFunction, lines: Sequence[Any], processes: Processes) -> list[str]:
    """Apply `function` to shards of similar total length; return all results on every process."""
    if processes.count == 1:
        return function(lines)
    by_length = sorted(range(len(lines)), key=lambda index: len(lines[index]))
    shard = function([lines[by_length[i]] for i in processes.shard(len(lines))])
    results = dict(zip(by_length, processes.all_gather(shard), strict=True))
    return [results[index] for index in range(len(lines))]
