"""Processes forked from a test: they start at once, since torch is loaded already."""

from __future__ import annotations

import logging
import os
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from accelerate.state import AcceleratorState

from seq2seq.cli import main


def in_child(work: Callable[[], object]) -> int:
    """Run `work` in a forked process; return its exit code, or minus the signal's number."""
    return exit_code(_fork(work))


def in_processes(count: int, work: Callable[[], object], log: Path) -> list[int]:
    """Run `work` in several processes that find each other as those of a launcher do.

    Their output is appended to a file. Returns their exit codes.
    """
    port = str(free_port())
    children = [
        _fork(
            work,
            log,
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count), MASTER_PORT=port,
            MASTER_ADDR="127.0.0.1", ACCELERATE_USE_CPU="1", OMP_NUM_THREADS="1",
        )
        for rank in range(count)
    ]  # fmt: skip
    return [exit_code(child) for child in children]


def seq2seq(count: int, log: Path, *arguments: object) -> str:
    """Run a command in several processes, which must succeed; return their output."""
    codes = in_processes(count, lambda: main([*map(str, arguments)]), log)
    text = log.read_text(encoding="utf-8")
    assert codes == [0] * count, text
    return text


def _fork(work: Callable[[], object], log: Path | None = None, **environment: str) -> int:
    child = os.fork()
    if child:
        return child
    code: object = 1
    try:
        os.environ |= environment
        AcceleratorState._reset_state(reset_partial_state=True)
        if log:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            sys.stdout, sys.stderr = (os.fdopen(os.dup(output), "w") for _ in range(2))
            logging.getLogger().handlers.clear()  # pytest's
        work()
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def exit_code(child: int) -> int:
    """Wait for a process; return its exit code, or minus the signal's number."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
