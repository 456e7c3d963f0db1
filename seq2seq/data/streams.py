"""Process the lines of files and pipes, and write results as soon as they are available."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from seq2seq.data.lines import open_bytes, read_lines
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


def available_lines(stream: Any) -> Iterator[list[bytes]]:
    r"""Yield blocks of lines, without \n, of a file or of those available in a pipe.

    A writer that waits for the result of a line gets it at once. A file or a full pipe is read in
    blocks of some thousands of lines.
    """
    rest, lines = b"", []
    while chunk := stream.read1(READ_BYTES):
        *whole, rest = (rest + chunk).split(b"\n")
        lines += whole
        # On Windows select supports only sockets.
        has_more = sys.platform != "win32" and bool(select.select([stream], [], [], 0)[0])
        if len(lines) >= LINES_AT_ONCE or (lines and not has_more):
            yield lines
            lines = []
    if rest:
        lines.append(rest)
    if lines:
        yield lines


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


def map_sharded(function: LineFunction, lines: Sequence[Any], processes: Processes) -> list[str]:
    """Apply `function` to shards of similar total length; return all results on every process."""
    if processes.count == 1:
        return function(lines)
    by_length = sorted(range(len(lines)), key=lambda index: len(lines[index]))
    shard = function([lines[by_length[i]] for i in processes.shard(len(lines))])
    results = dict(zip(by_length, processes.all_gather(shard), strict=True))
    return [results[index] for index in range(len(lines))]


def _blocks(path: Path | None, errors: str, read: LineReader) -> Iterator[list[Any]]:
    """Yield blocks of parsed lines of a file, or of standard input if `path` is None.

    Lines before an invalid line are yielded before the error.
    """
    name, first = str(path or "standard input"), 1
    with open_bytes(path) if path else nullcontext(sys.stdin.buffer) as stream:
        for part in available_lines(stream):
            block = []
            try:
                lines = read_lines(part, name, errors=errors, first=first)
                for number, line in enumerate(lines, start=first):
                    block.append(read(line, f"{name}, line {number}"))
            except UserError:
                if block:
                    yield block
                raise
            yield block
            first += len(part)


def count_lines(files: Sequence[Path]) -> int | None:
    """Return the number of lines of files; None if not all are regular files."""
    if not files or not all(path.is_file() for path in files):
        return None
    count = 0
    for path in files:
        with open_bytes(path) as stream:
            count += sum(1 for _ in stream)
    return count
