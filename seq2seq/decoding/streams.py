"""Files and pipes, line by line: what has arrived is answered, and written at once."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from seq2seq.data.corpus import open_bytes, read_lines
from seq2seq.decoding.translator import LINES_AT_ONCE
from seq2seq.errors import UserError
from seq2seq.processes import Processes

READ_BYTES = 1 << 16

Answer = Callable[[Sequence[str]], list[str]]
"""Lines to as many lines."""


def arriving_lines(stream: IO[bytes]) -> Iterator[list[bytes]]:
    r"""Yield the lines that a pipe holds, without their \n, whenever it holds any.

    Waits only when there is none: a writer that sends a line and waits is not made to wait, and a
    full pipe is emptied some thousands of lines at a time.
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


def _has_more(descriptor: int) -> bool:
    try:
        return bool(select.select([descriptor], [], [], 0)[0])
    except (OSError, ValueError):  # Windows selects sockets alone; then every read is an answer
        return False


def answer_streams(
    answer: Answer,
    files: Sequence[str],
    output: Path | None,
    *,
    errors: str = "strict",
    processes: Processes,
) -> None:
    """Answer the lines of files, or standard input, into a file or standard output, in order.

    Of several processes the main one reads and writes, and all answer.
    """
    if not processes.is_main:
        while (block := processes.broadcast(None)) is not None:
            answer_shared(answer, block, processes)
        return
    paths = [Path(name) for name in files]
    _require_files(paths, output)
    with _sink(output) as sink:
        for block in _blocks(paths, errors):
            lines = answer_shared(answer, processes.broadcast(block), processes)
            with _named(output):
                sink.writelines(line.encode() + b"\n" for line in lines)
                sink.flush()
    processes.broadcast(None)  # the others may go


def answer_shared(answer: Answer, lines: Sequence[str], processes: Processes) -> list[str]:
    """Answer on all processes at once: each a share of like length, the same list for all."""
    if processes.count == 1:
        return answer(lines)
    by_length = sorted(range(len(lines)), key=lambda place: len(lines[place]))
    own = answer([lines[by_length[i]] for i in processes.shard(len(lines))])
    answers = [""] * len(lines)
    for place, line in zip(by_length, processes.all_gather(own), strict=True):
        answers[place] = line
    return answers


def _require_files(paths: Sequence[Path], output: Path | None) -> None:
    """Look at every file before anything is written."""
    for path in paths:
        if not path.exists():
            raise UserError(f"file not found: {path}")
        if path.is_dir():
            raise UserError(f"{path} is a folder; name files")
        for place in () if output is None else (output, _part_of(output)):
            if place.exists() and place.samefile(path):
                raise UserError(f"{place} would be overwritten while it is read; name another -o")


@contextmanager
def _sink(output: Path | None) -> Iterator[IO[bytes]]:
    """Open where answers go; a file is called FILE.part until it is whole."""
    if output is None:
        yield sys.stdout.buffer
        return
    target = output.resolve()
    is_file = not target.exists() or target.is_file()
    place = _part_of(output) if is_file else output
    with _named(output):
        stream = place.open("ab") if is_file else place.open("wb")
        if is_file:
            _claim(stream, place)
            stream.truncate(0)
    try:
        yield stream
    except BaseException:
        with suppress(OSError):  # what could not be written is tried once more
            stream.close()
        raise
    with _named(output):
        stream.close()
        if is_file:
            place.replace(target)


@contextmanager
def _named(output: Path | None) -> Iterator[None]:
    """Name the output where it cannot be written."""
    try:
        yield
    except BrokenPipeError:  # its reader has gone, and that is no mistake
        raise
    except OSError as error:
        name = output or "standard output"
        raise UserError(f"{name} cannot be written: {error.strerror}") from None


def _claim(stream: IO[bytes], place: Path) -> None:
    """Raise UserError if another process writes this file; the lock ends with this one."""
    try:
        import fcntl

        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Else it had been finished, and renamed, between opening and locking.
        claimed = place.exists() and os.path.samestat(os.fstat(stream.fileno()), place.stat())
    except BlockingIOError:
        claimed = False
    except (ImportError, OSError):  # Windows, and file systems that have no locks
        claimed = True
    if not claimed:
        stream.close()
        raise UserError(f"{place} is being written by another process; name another -o")


def _part_of(output: Path) -> Path:
    """Where a file is written until it is whole."""
    target = output.resolve()
    return target.with_name(f"{target.name}.part")


def _blocks(paths: Sequence[Path], errors: str) -> Iterator[list[str]]:
    if not paths:
        yield from _pipe_blocks(sys.stdin.buffer, "standard input", errors)
    for path in paths:
        with open_bytes(path) as stream:
            if path.is_fifo():
                yield from _pipe_blocks(stream, str(path), errors)
                continue
            yield from _in_blocks(read_lines(stream, str(path), errors=errors))


def _pipe_blocks(stream: IO[bytes], name: str, errors: str) -> Iterator[list[str]]:
    number = 0
    for lines in arriving_lines(stream):
        yield from _in_blocks(read_lines(lines, name, errors=errors, first=number + 1))
        number += len(lines)


def _in_blocks(lines: Iterator[str]) -> Iterator[list[str]]:
    """Yield some thousands of lines at a time; those before a bad line come before its error."""
    block: list[str] = []
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
