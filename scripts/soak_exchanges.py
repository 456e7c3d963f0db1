"""Kill one of two training processes before every collective operation, and resume each time.

    python scripts/soak_exchanges.py

Each of the two processes is killed once before each collective operation of a short run (broadcast,
all-reduce, barrier). The other process must end within seconds with an error message. The same
command must then finish with the weights, optimiser states and losses of an uninterrupted run.
The exit code is 1 if a check fails.
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
"""Maximum number of seconds until a process notices that its peer has ended."""
EXCHANGES = (
    "all_gather",
    "broadcast",
    "all_reduce",
    "barrier",
    "require_equal",
    "main_first",
)


def watch(log: io.TextIOBase, kill_at: int | None) -> None:
    """Log the collective operations of this process, and kill it before number `kill_at`."""
    count = 0

    def logged(name: str) -> Callable[..., Any]:
        exchange = getattr(Processes, name)

        def call(self: Processes, *arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            caller = sys._getframe(1)
            log.write(f"{name} at {Path(caller.f_code.co_filename).name}:{caller.f_lineno}\n")
            log.flush()
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return exchange(self, *arguments, **options)

        return call

    for name in EXCHANGES:
        setattr(Processes, name, logged(name))


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
    """Return the path of the log of a process."""
    return run.with_suffix(f".{rank}.log")


def exchanges_of(run: Path, rank: int) -> Path:
    """Return the path of the list of collective operations of a process, one per line."""
    return run.with_suffix(f".{rank}.exchanges")


def start(
    recipe: Path, run: Path, victim: int | None = None, kill_at: int | None = None
) -> list[BaseProcess]:
    """Start training on two processes. The victim kills itself before exchange `kill_at`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    processes: list[BaseProcess] = [
        fork.Process(
            target=_train, args=(rank, port, recipe, run, kill_at if rank == victim else None)
        )
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    return processes


def survivor_fault(processes: list[BaseProcess], victim: int, log: Path) -> str | None:
    """Wait for both processes to end. Return an error if the survivor did not end as expected."""
    processes[victim].join()
    survivor = processes[1 - victim]
    survivor.join(TIMEOUT_SECONDS)
    if survivor.is_alive():
        survivor.kill()
        return f"survivor still running after {TIMEOUT_SECONDS} s"
    text = log.read_text()
    if survivor.exitcode != 1 or "ends because another process ended" not in text:
        return f"survivor ended with code {survivor.exitcode}: {text[-300:]}"
    return None


def main() -> None:
    """Kill each process before each exchange, and compare the resumed runs."""
    faults, began = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = write_recipe(folder, STEPS)
        steady = folder / "steady"
        for process in start(recipe, steady):
            process.join()
        expected = final_state(steady, STEPS)
        exchanges = [exchanges_of(steady, rank).read_text().splitlines() for rank in range(2)]
        for victim in range(2):
            for number, exchange in enumerate(exchanges[victim], start=1):
                run = folder / "run"
                processes = start(recipe, run, victim, number)
                fault = survivor_fault(processes, victim, log_of(run, 1 - victim))
                for process in start(recipe, run):
                    process.join()
                if final_state(run, STEPS) != expected:
                    fault = "the resumed run has a different result"
                kill = f"process {victim} killed before exchange {number}, {exchange}"
                print(f"{kill}: {fault or 'ok'}")
                faults += fault is not None
                shutil.rmtree(run)
    total = sum(map(len, exchanges))
    print(f"kills: {total}, failed: {faults}, {time.monotonic() - began:.0f} s")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
