"""Measure the effect of choosing the number of threads, on an idle and on a busy machine.

Usage: python scripts/bench_threads.py --recipe RECIPE --run RUN --lines FILE --language-model RUN
       [--task training|one_line|lines|generation ...] [--busy N] [--seconds N] [--rounds N]
       [--json]

Each setting is a separate command, in turn (A B C A B C): `chosen` is what the commands do by
themselves, `one` and `all` are OMP_NUM_THREADS at 1 and at the number of cores. training: tokens a
second of a run of some seconds; one_line: lines of a pipe that waits for each; lines: the first
thousand lines of a file; generation: characters. All count from when the model is loaded. --busy
starts N busy processes. Ratios are medians over the rounds, of `chosen`
to the other two, each to that of its round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import torch

from seq2seq.machine.devices import describe_device
from seq2seq.machine.threads import VARIABLES, usable_cores

SETTINGS: dict[str, dict[str, str]] = {
    "chosen": {},
    "one": {"OMP_NUM_THREADS": "1"},
    "all": {"OMP_NUM_THREADS": str(usable_cores())},
}
SINGLE_LINES, MANY_LINES, LENGTH = 15, 1000, 400


def environment(setting: str) -> dict[str, str]:
    """Return the variables of a command in this setting."""
    plain = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    return plain | SETTINGS[setting]


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Run busy processes in the background."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in others:
            process.kill()


@contextmanager
def command(setting: str, *arguments: str) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Start a command; yield its standard input and output."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "seq2seq", *arguments], env=environment(setting),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
        assert process.stdin and process.stdout
        with suppress(BrokenPipeError):  # it has ended early, as is told below
            yield process.stdin, process.stdout
        process.stdout.close()
        if process.wait():
            errors.seek(0)
            last = errors.read().decode(errors="replace").strip().splitlines()[-3:]
            raise SystemExit(
                f"bench_threads: seq2seq {' '.join(arguments)} failed: {' '.join(last)}"
            )


def training(setting: str, options: argparse.Namespace) -> float:
    """Return the target tokens per second of a short run."""
    with tempfile.TemporaryDirectory() as folder:
        with command(
            setting, "train", str(options.recipe), "--run", f"{folder}/run",
            f"training.max_minutes={options.seconds / 60}", "training.log_every=1000000",
            "training.validate_every=null", "training.validate_every_epochs=null",
            "training.validation_sentences=1", "training.max_steps=1000000",
        ) as (_, output):  # fmt: skip
            output.read()
        lines = Path(folder, "run", "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    [speed] = [
        record["tokens_per_second"]
        for record in map(json.loads, lines)
        if record["kind"] == "train"
    ]
    return speed


def translation(setting: str, options: argparse.Namespace, blocks: list[list[bytes]]) -> float:
    """Return the lines per second of a pipe that waits for each block's answers."""
    with command(setting, "translate", str(options.run)) as (stdin, stdout):
        stdin.write(b"\n")
        stdin.flush()
        stdout.readline()  # the model is loaded
        start = time.perf_counter()
        for block in blocks:
            stdin.writelines(block)
            stdin.flush()
            for _ in block:
                stdout.readline()
        seconds = time.perf_counter() - start
        stdin.close()
    return sum(map(len, blocks)) / seconds


def one_line(setting: str, options: argparse.Namespace) -> float:
    """Translate lines one by one."""
    lines = options.lines.read_bytes().splitlines(keepends=True)
    return translation(setting, options, [[line] for line in lines[:SINGLE_LINES]])


def many_lines(setting: str, options: argparse.Namespace) -> float:
    """Translate many lines at once."""
    lines = options.lines.read_bytes().splitlines(keepends=True)
    return translation(setting, options, [lines[:MANY_LINES]])


def generation(setting: str, options: argparse.Namespace) -> float:
    """Return the characters per second of a text from its first to its last."""
    arguments = ["generate", str(options.language_model), "--length", str(LENGTH), "--seed", "1"]
    with command(setting, *arguments) as (_, stdout):
        first = stdout.read(1)
        start = time.perf_counter()
        text = first + stdout.read()
        return len(text.decode()) / (time.perf_counter() - start)


TASKS: dict[str, Callable[[str, argparse.Namespace], float]] = {
    "training": training, "one_line": one_line, "lines": many_lines, "generation": generation,
}  # fmt: skip


def measure(task: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return a task's speeds in all settings, and the ratios."""
    speeds: dict[str, list[float]] = {setting: [] for setting in SETTINGS}
    for _ in range(options.rounds):
        for setting, found in speeds.items():
            found.append(TASKS[task](setting, options))
            print(f"{task} {setting} {found[-1]:,.1f}", file=sys.stderr, flush=True)
    ratios = {
        other: statistics.median(
            chosen / theirs for chosen, theirs in zip(speeds["chosen"], speeds[other], strict=True)
        )
        for other in ("one", "all")
    }
    return {"speeds": speeds, "ratio": ratios}


def main() -> None:
    """Parse the arguments, measure, and print a table or one JSON object."""
    parser = argparse.ArgumentParser(description="threads that are chosen, one, and all")
    parser.add_argument("--recipe", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True, help="translates")
    parser.add_argument("--lines", type=Path, required=True, metavar="FILE", help="to translate")
    parser.add_argument("--language-model", type=Path, required=True, metavar="RUN")
    parser.add_argument("--task", choices=[*TASKS], action="append", help="(all)")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="processes (0)")
    parser.add_argument("--seconds", type=float, default=25, help="of training (25)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    with busy(options.busy):
        results = {task: measure(task, options) for task in options.task or TASKS}
    hardware = describe_device(torch.device("cpu"))
    if options.json:
        print(json.dumps({"hardware": hardware, "busy": options.busy, **results}))
        return
    print(f"{hardware}; {options.busy} busy process(es)")
    for task, result in results.items():
        medians = "  ".join(
            f"{name} {statistics.median(found):,.1f}" for name, found in result["speeds"].items()
        )
        ratios = "  ".join(f"{value:.2f} of {name}" for name, value in result["ratio"].items())
        print(f"{task:11} {medians}; chosen is {ratios}")


if __name__ == "__main__":
    main()
