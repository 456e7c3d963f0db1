"""Kill one of two training processes at every exchange between them, and resume each time.

    python scripts/soak_exchanges.py

Before each exchange of a short run (a broadcast, a sum, a barrier), each of the two processes is
killed once. The other one must end within seconds and say why; the same command must then finish
with the weights, optimiser states and losses of a run left in peace. Exits with 1 unless it does.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from soak_resume import final_state, write_recipe

from seq2seq.cli import main as seq2seq_command
from seq2seq.processes import Processes

STEPS = 14
TIMEOUT_SECONDS = 10
"""Maximum number of seconds until a process notices that the other one has ended."""
EXCHANGES = (
    "all_gather",
    "broadcast",
    "all_reduce_max",
    "all_reduce_sum",
    "barrier",
    "require_equal",
    "require_shared",
    "main_first",
)


def watch(log: io.TextIOBase, kill_at: int | None) -> None:
    """Note this process's exchanges in a log, and let it kill itself at one of them."""
    count = 0

    def watched(name: str) -> Callable[..., Any]:
        exchange = getattr(Processes, name)

        def noted(self: Processes, *arguments: Any) -> Any:
            nonlocal count
            count += 1
            caller = sys._getframe(1)
            log.write(f"{name} at {Path(caller.f_code.co_filename).name}:{caller.f_lineno}\n")
            log.flush()
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return exchange(self, *arguments)

        return noted

    for name in EXCHANGES:
        setattr(Processes, name, watched(name))


def _train(rank: int, port: int, recipe: Path, run: Path, kill_at: int | None) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ACCELERATE_USE_CPU": "true",
    }
    with log_of(run, rank).open("w") as errors, exchanges_of(run, rank).open("w") as log:
        os.dup2(errors.fileno(), sys.stderr.fileno())
        watch(log, kill_at)
        seq2seq_command(["train", str(recipe), "--run", str(run)])


def log_of(run: Path, rank: int) -> Path:
    """Return the file with what a process said."""
    return run.with_suffix(f".{rank}.log")


def exchanges_of(run: Path, rank: int) -> Path:
    """Return the file with a process's exchanges, one a line."""
    return run.with_suffix(f".{rank}.exchanges")


def start(
    recipe: Path, run: Path, victim: int | None = None, kill_at: int | None = None
) -> list[BaseProcess]:
    """Start the command on two processes, of which one may be killed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    started: list[BaseProcess] = [
        fork.Process(
            target=_train, args=(rank, port, recipe, run, kill_at if rank == victim else None)
        )
        for rank in range(2)
    ]
    for process in started:
        process.start()
    return started


def survived(started: list[BaseProcess], victim: int, log: Path) -> str | None:
    """Wait for both to end; return what is wrong with the survivor's end."""
    started[victim].join()
    other = started[1 - victim]
    other.join(TIMEOUT_SECONDS)
    if other.is_alive():
        other.kill()
        return f"did not notice within {TIMEOUT_SECONDS} s"
    said = log.read_text()
    if other.exitcode != 1 or "ends because another process ended" not in said:
        return f"ended with code {other.exitcode}: {said[-300:]}"
    return None


def main() -> None:
    """Kill at every exchange, and compare."""
    faults, began = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = write_recipe(folder, STEPS)
        steady = folder / "steady"
        for process in start(recipe, steady):
            process.join()
        expected = final_state(steady, STEPS)
        places = [exchanges_of(steady, rank).read_text().splitlines() for rank in range(2)]
        for victim in range(2):
            for number, place in enumerate(places[victim], start=1):
                run = folder / "run"
                started = start(recipe, run, victim, number)
                fault = survived(started, victim, log_of(run, 1 - victim))
                for process in start(recipe, run):
                    process.join()
                if final_state(run, STEPS) != expected:
                    fault = "the resumed run ends with other bytes"
                print(
                    f"process {victim} killed before exchange {number}, {place}: {fault or 'fine'}"
                )
                faults += fault is not None
                shutil.rmtree(run)
    total = sum(map(len, places))
    print(f"{total} kills, {faults} faults, {time.monotonic() - began:.0f} s")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
