"""Run checks and benchmarks that need a GPU, the most important first.

Usage: python scripts/gpu_check [--step NAME ...] [--data FOLDER] [--text FILE] [--minutes N]
       [-o FILE] [--rehearse]

Each result is printed at once as a line of JSON. Each step runs in its own process with a time
limit; a step that fails or hangs does not stop the others. All steps take at most nine minutes.
--data: corpus of the quick start, data/libreoffice_en_de. --text: Tiny Shakespeare. Steps without
their data, and peers that are not installed, are skipped. --rehearse: tiny sizes, on the CPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(SCRIPTS), str(SCRIPTS.parent)]

STEPS = {
    "environment": ("steps:environment", 30),
    "tests": ("steps:tests", 150),
    "base": ("training:base", 60),
    "base, attention dropout": ("training:attention_dropout", 60),
    "big": ("training:big", 60),
    "decoding": ("decoding:search", 60),
    "decoding, CTranslate2": ("decoding:ctranslate2", 60),
    "quick start": ("steps:quick_start", 240),
    "language model": ("steps:language_model", 240),
}
"""Module and function of each step, and its time limit in seconds."""


def run_step(name: str, arguments: argparse.Namespace) -> None:
    """Run a step in this process, and print its results."""
    module, function = STEPS[name][0].split(":")
    step = getattr(importlib.import_module(f"gpu_check.{module}"), function)
    for result in step(arguments):
        print(json.dumps({"step": name, **result}), flush=True)


def start_step(name: str, seconds: float, output: Path | None) -> bool:
    """Run a step in a new process; return whether it succeeded."""
    command = [sys.executable, __file__, *sys.argv[1:], "--here", name, "--seconds", str(seconds)]
    start = time.monotonic()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
        # Kills the whole process group.
        limit = threading.Timer(seconds, os.killpg, [process.pid, signal.SIGKILL])
        limit.start()
        assert process.stdout
        for line in process.stdout:
            write(line, output)
        code = process.wait()
        limit.cancel()
        if code:
            errors.seek(0)
            reason = errors.read().decode(errors="replace").strip().splitlines()[-5:]
            failed = {"step": name, "failed": code, "seconds": round(time.monotonic() - start)}
            write(json.dumps(failed | {"reason": reason}) + "\n", output)
    return code == 0


def write(line: str, output: Path | None) -> None:
    """Print a line at once, and append it to a file."""
    print(line, end="", flush=True)
    if output:
        with output.open("a", encoding="utf-8") as stream:
            stream.write(line)


def main() -> None:
    """Run the steps in sequence."""
    parser = argparse.ArgumentParser(description="check and measure what needs a GPU")
    parser.add_argument("--step", choices=[*STEPS], action="append", help="(all)")
    parser.add_argument("--data", type=Path, help="folder of the quick start's corpus")
    parser.add_argument("--text", type=Path, help="file with Tiny Shakespeare")
    parser.add_argument("--minutes", type=float, default=9, help="time limit of all steps (9)")
    parser.add_argument("-o", "--output", type=Path, help="also append the results to this file")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument("--here", choices=[*STEPS], help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rehearse:
        os.environ |= {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
    if arguments.here:
        run_step(arguments.here, arguments)
        return
    end, failed = time.monotonic() + 60 * arguments.minutes, []
    for name in arguments.step or STEPS:
        # A rehearsal may run beside other programs: it gets more time.
        limit = STEPS[name][1] * (5 if arguments.rehearse else 1)
        seconds = min(limit, end - time.monotonic())
        if seconds < 5:
            write(json.dumps({"step": name, "failed": "no time left"}) + "\n", arguments.output)
        if seconds < 5 or not start_step(name, seconds, arguments.output):
            failed.append(name)
    if failed:
        sys.exit(f"gpu_check: error: failed steps: {', '.join(failed)}; see the lines above")


if __name__ == "__main__":
    main()
