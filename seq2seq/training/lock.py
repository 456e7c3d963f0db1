"""Lock a run directory for one training process at a time."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from seq2seq.errors import SharedError
from seq2seq.model.saved import HOLDER_FILE, LOCK_FILE, not_a_run
from seq2seq.processes import Processes

logger = logging.getLogger(__name__)


@contextmanager
def locked(run: Path, processes: Processes) -> Iterator[None]:
    """Lock a run directory against other training commands.

    Raises SharedError, which names the holder, if it is locked, or if it is no run directory. The
    operating system releases the lock when the process ends, even if it crashes.
    """
    lock = FileLock(run / LOCK_FILE)
    refusal = not_a_run(run) if processes.is_main else None
    if processes.is_main and not refusal:
        run.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            refusal = (
                f"{run} is in use: {_holder(run)} is training there; wait for it, stop it, or "
                "name another directory with --run"
            )
        except (OSError, NotImplementedError) as error:
            logger.warning("%s cannot be locked (%s): do not start a second run there", run, error)
        else:
            _write_holder(run)
    if refusal := processes.broadcast(refusal):
        raise SharedError(refusal)
    try:
        yield
    finally:
        if lock.is_locked:
            with suppress(OSError):
                (run / HOLDER_FILE).unlink()
                if [path.name for path in run.iterdir()] == [LOCK_FILE]:  # nothing was started
                    (run / LOCK_FILE).unlink()
            lock.release()


def _write_holder(run: Path) -> None:
    began = datetime.now().astimezone().isoformat(" ", "seconds")
    text = f"process {os.getpid()} on {socket.gethostname()}, started {began},"
    with suppress(OSError):  # a full disk is reported later, if it matters
        (run / HOLDER_FILE).write_text(text, encoding="utf-8")


def _holder(run: Path) -> str:
    try:
        return (run / HOLDER_FILE).read_text(encoding="utf-8") or "another process"
    except (OSError, UnicodeDecodeError):
        return "another process"
