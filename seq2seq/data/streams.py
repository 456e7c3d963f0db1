"""Process the lines of files and pipes, writing results as soon as they are available."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import IO, Any

from seq2seq.data.lines import named_gzip_errors, open_bytes, read_lines, require_files
from seq2seq.errors import UserError, named_output
from seq2seq.files import output_file, require_writable
from seq2seq.processes import Processes

READ_BYTES = 1 << 16
_STANDARD_INPUT = Path("/dev/stdin")
LINES_AT_ONCE = 10_000
"""Maximum number of lines that are processed together."""

LineFunction = Callable[[Iterable[Sequence[Any]]], Iterator[list[str]]]
"""Maps blocks of lines, or of what a `LineReader` makes of them, to as many lines each.

It may take the next block before it yields the lines of the last one.
"""
LineReader = Callable[[str, str], Sized]
"""Makes of an input line, named by file and line number for errors, what a `LineFunction` takes."""


def arriving_lines(stream: IO[bytes]) -> Iterator[list[bytes]]:
    r"""Yield the lines available in a pipe, without their \n, as soon as there are any.

    A writer that sends a line and waits for the result gets it at once; a full pipe is read some
    thousands of lines at a time.
    """
    descriptor = stream.fileno()
    unfinished: list[bytes] = []
    lines: list[bytes] = []
    while chunk := os.read(descriptor, READ_BYTES):
        first, *others = chunk.split(b"\n")
        unfinished.append(first)
        if others:
            lines += [b"".join(unfinished), *others[:-1]]
            unfinished = [others[-1]]
        if len(lines) >= LINES_AT_ONCE or (lines and not _has_more(descriptor)):
            yield lines
            lines = []
    if rest := b"".join(unfinished):
        lines.append(rest)
    if lines:
        yield lines


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
    read: LineReader = lambda line, where: line,
    finish: Callable[[], None] = lambda: None,
) -> None:
    """Apply `function` to the lines of files or standard input and write the results in order.

    output: standard output if None. The main process reads and writes; all processes compute.
    finish: called after the last line.
    """
    if not processes.is_main:
        while (block := processes.broadcast(None)) is not None:
            process_shared(partial(_on_block, function), block, processes)
        return
    paths = [Path(name) for name in files]
    require_files(paths)
    if output:
        require_writable(output, paths or [_STANDARD_INPUT])
    name = output or "standard output"
    with output_file(output) if output else nullcontext(sys.stdout.buffer) as sink:
        for part in _parts(paths, errors, read):
            for lines in _processed(function, part, processes):
                with named_output(name):
                    sink.writelines(line.encode() + b"\n" for line in lines)
                    sink.flush()
        finish()
    processes.broadcast(None)  # ends the others


def count_lines(files: Sequence[str]) -> int | None:
    """Return the number of lines of files; None if not all are regular files."""
    paths = [Path(name) for name in files]
    if not paths or not all(path.is_file() for path in paths):
        return None
    count = 0
    for path in paths:
        with named_gzip_errors(str(path)), open_bytes(path) as stream:
            count += sum(1 for _ in stream)
    return count


def _processed(
    function: LineFunction, lines: Iterator[Any], processes: Processes
) -> Iterator[list[str]]:
    """Yield the results of lines, block by block; several processes share each block.

    The results of the lines before an invalid line are yielded before its error.
    """
    errors: list[UserError] = []

    def blocks() -> Iterator[list[Any]]:
        block: list[Any] = []
        try:
            for line in lines:
                block.append(line)
                if len(block) == LINES_AT_ONCE:
                    yield block
                    block = []
        except UserError as error:
            errors.append(error)
        if block:
            yield block

    if processes.count == 1:
        yield from function(blocks())
    else:
        on_block = partial(_on_block, function)
        for block in blocks():
            yield process_shared(on_block, processes.broadcast(block), processes)
    if errors:
        raise errors[0]


def _on_block(function: LineFunction, block: Sequence[Any]) -> list[str]:
    return next(function([block]))


def process_shared(
    function: Callable[[Sequence[Any]], list[str]], lines: Sequence[Any], processes: Processes
) -> list[str]:
    """Apply `function` to shards of similar total length; return all results on every process."""
    if processes.count == 1:
        return function(lines)
    by_length = sorted(range(len(lines)), key=lambda place: len(lines[place]))
    own = function([lines[by_length[i]] for i in processes.shard(len(lines))])
    answers = [""] * len(lines)
    for place, line in zip(by_length, processes.all_gather(own), strict=True):
        answers[place] = line
    return answers


def _parts(paths: Sequence[Path], errors: str, read: LineReader) -> Iterator[Iterator[Any]]:
    """Yield the lines of each file, and those that are available in a pipe at a time."""
    names: Sequence[Path | None] = paths or [None]
    for path in names:
        name = "standard input" if path is None else str(path)
        with open_bytes(path) if path else nullcontext(sys.stdin.buffer) as stream:
            is_pipe, first = path is None or path.is_fifo(), 1
            parts: Iterable[Any] = arriving_lines(stream) if is_pipe else [stream]
            for part in parts:
                lines = enumerate(read_lines(part, name, errors=errors, first=first), start=first)
                yield (read(line, f"{name}, line {i}") for i, line in lines)
                first += len(part) if is_pipe else 0
