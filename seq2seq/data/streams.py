"""Process the lines of files and pipes, writing results as soon as they are available."""

from __future__ import annotations

import itertools
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol

from seq2seq.data.lines import named_gzip_errors, open_bytes, read_lines, require_files
from seq2seq.errors import UserError, named_output
from seq2seq.files import is_among, output_file, part_of
from seq2seq.processes import Processes

READ_BYTES = 1 << 16
_STANDARD_INPUT = Path("/dev/stdin")
LINES_AT_ONCE = 2_000
"""Maximum number of lines that are processed together."""

LineFunction = Callable[[Sequence[Any]], list[str]]
"""Maps lines, or what a `LineReader` makes of them, to the same number of lines."""


class LineReader(Protocol):
    """Makes of each input line what a `LineFunction` takes."""

    def __call__(self, line: str, number: int, where: str) -> Sized:
        """Read a line. number: from 0, over all files. where: file and line, for errors."""

    def finish(self) -> None:
        """Called after the last line."""


class PlainLines:
    """Leaves lines as they are."""

    def __call__(self, line: str, number: int, where: str) -> str:
        """Return the line."""
        return line

    def finish(self) -> None:
        """Do nothing."""


def arriving_lines(stream: IO[bytes]) -> Iterator[list[bytes]]:
    r"""Yield the lines available in a pipe, without their \n, as soon as there are any.

    A writer that sends a line and waits for the result gets it at once; a full pipe is read some
    thousands of lines at a time.
    """
    descriptor = stream.fileno()
    unfinished: list[bytes] = []
    lines: list[bytes] = []
    while chunk := _read(descriptor, stream):
        first, *others = chunk.split(b"\n")
        unfinished.append(first)
        if others:
            lines += [b"".join(unfinished), *others[:-1]]
            unfinished = [others[-1]]
        while len(lines) >= LINES_AT_ONCE:
            yield lines[:LINES_AT_ONCE]
            lines = lines[LINES_AT_ONCE:]
        if lines and not _has_more(descriptor):
            yield lines
            lines = []
    if rest := b"".join(unfinished):
        lines.append(rest)
    if lines:
        yield lines


def _read(descriptor: int, stream: IO[bytes]) -> bytes:
    try:
        return os.read(descriptor, READ_BYTES)
    except OSError as error:
        name = "standard input" if stream is sys.stdin.buffer else stream.name
        raise UserError(f"{name} cannot be read: {error.strerror}") from None


def _has_more(descriptor: int) -> bool:
    try:
        return bool(select.select([descriptor], [], [], 0)[0])
    except (OSError, ValueError):  # Windows only supports sockets: yield after every read
        return False


def process_streams(
    function: LineFunction,
    files: Sequence[str],
    output: Path | None,
    *,
    errors: str = "strict",
    processes: Processes,
    reader: LineReader | None = None,
    also_read: Sequence[Path] = (),
) -> None:
    """Apply `function` to the lines of files or standard input and write the results in order.

    output: standard output if None. The main process reads and writes; all processes compute.
    also_read: other files that the command reads, which the output must not replace.
    """
    reader = reader or PlainLines()
    if not processes.is_main:
        while (block := processes.broadcast(None)) is not None:
            process_shared(function, block, processes)
        return
    paths = [Path(name) for name in files]
    require_files(paths)
    _require_other_output(output, [*(paths or [_STANDARD_INPUT]), *also_read])
    name = output or "standard output"
    with output_file(output) if output else nullcontext(sys.stdout.buffer) as sink:
        for block in _blocks(paths, errors, reader):
            lines = process_shared(function, processes.broadcast(block), processes)
            with named_output(name):
                sink.writelines(line.encode() + b"\n" for line in lines)
                sink.flush()
        reader.finish()
    processes.broadcast(None)  # ends the others


def count_lines(files: Sequence[str]) -> int | None:
    """Return the number of lines of files; None if not all are regular files."""
    paths = [Path(name) for name in files]
    if not paths or not all(path.is_file() for path in paths):
        return None
    count = 0
    for path in paths:
        last = b"\n"
        with named_gzip_errors(str(path)), open_bytes(path) as stream:
            for chunk in iter(partial(stream.read, READ_BYTES), b""):
                count, last = count + chunk.count(b"\n"), chunk
        count += not last.endswith(b"\n")
    return count


def process_shared(function: LineFunction, lines: Sequence[Any], processes: Processes) -> list[str]:
    """Apply `function` to shards of similar total length; return all results on every process."""
    if processes.count == 1:
        return function(lines)
    by_length = sorted(range(len(lines)), key=lambda place: len(lines[place]))
    own = function([lines[by_length[i]] for i in processes.shard(len(lines))])
    answers = [""] * len(lines)
    for place, line in zip(by_length, processes.all_gather(own), strict=True):
        answers[place] = line
    return answers


def _require_other_output(output: Path | None, read: Sequence[Path]) -> None:
    """Raise UserError if the output is one of the files that are read, by whatever name."""
    for place in () if output is None else (output, part_of(output)):
        if is_among(place, read):
            raise UserError(f"{place} would be overwritten while it is read; name another -o")


def _blocks(paths: Sequence[Path], errors: str, reader: LineReader) -> Iterator[list[Any]]:
    read = _numbered(reader)
    if not paths:
        yield from _pipe_blocks(sys.stdin.buffer, "standard input", errors, read)
    for path in paths:
        with open_bytes(path) as stream:
            if path.is_fifo():
                yield from _pipe_blocks(stream, str(path), errors, read)
                continue
            lines = enumerate(read_lines(stream, str(path), errors=errors), start=1)
            yield from _in_blocks(read(line, f"{path}, line {i}") for i, line in lines)


def _numbered(reader: LineReader) -> Callable[[str, str], Any]:
    """Return a reader that counts the lines of all files."""
    numbers = itertools.count()
    return lambda line, where: reader(line, next(numbers), where)


def _pipe_blocks(
    stream: IO[bytes], name: str, errors: str, read: Callable[[str, str], Any]
) -> Iterator[list[Any]]:
    first = 1
    for arrived in arriving_lines(stream):
        lines = enumerate(read_lines(arrived, name, errors=errors, first=first), start=first)
        yield from _in_blocks(read(line, f"{name}, line {i}") for i, line in lines)
        first += len(arrived)


def _in_blocks(lines: Iterator[Any]) -> Iterator[list[Any]]:
    """Yield blocks of lines; those before an invalid line are yielded before its error."""
    block: list[Any] = []
    try:
        for line in lines:
            block.append(line)
            if len(block) == LINES_AT_ONCE:
                yield block
                block = []
    except UserError:
        if block:
            yield block
        raise
    if block:
        yield block
