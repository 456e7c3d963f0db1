"""Check and measure everything on a GPU that no CPU can show, most important first.

Usage: python scripts/gpu_check [--step NAME ...] [--data FOLDER] [--text FILE] [--minutes N]
       [-o FILE] [--rehearse]

Every result is a line of JSON, printed as it comes. Each step is a process with a limit of its own,
so that one that fails or hangs leaves the others; the whole takes nine minutes at most. --data: the
corpus of the quick start, data/libreoffice_en_de; --text: Tiny Shakespeare. Without them their
steps are left out, as are peers that are not installed. --rehearse: tiny sizes, on the CPU.
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
    "tests": ("steps:tests", 90),
    "base": ("training:base", 60),
    "base, attention dropout": ("training:attention_dropout", 60),
    "base, compiled": ("training:compiled", 75),
    "big": ("training:big", 60),
    "decoding": ("decoding:search", 60),
    "decoding, CTranslate2": ("decoding:ctranslate2", 60),
    "quick start": ("steps:quick_start", 240),
    "language model": ("steps:language_model", 240),
}
"""Module and function of each step, and its limit in seconds."""


def run_step(name: str, arguments: argparse.Namespace) -> None:
    """Run a step in this process, and print its results."""
    module, function = STEPS[name][0].split(":")
    step = getattr(importlib.import_module(f"gpu_check.{module}"), function)
    for result in step(arguments):
        print(json.dumps({"step": name, **result}), flush=True)


def start_step(name: str, seconds: float, output: Path | None) -> bool:
    """Run a step in a process of its own; return whether it succeeded."""
    command = [sys.executable, __file__, *sys.argv[1:], "--here", name, "--seconds", str(seconds)]
    start = time.monotonic()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
        # With all that it has started.
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
    """Print a line at once, and add it to a file."""
    print(line, end="", flush=True)
    if output:
        with output.open("a", encoding="utf-8") as stream:
            stream.write(line)


def main() -> None:
    """Start the steps one after the other."""
    parser = argparse.ArgumentParser(description="check and measure what needs a GPU")
    parser.add_argument("--step", choices=[*STEPS], action="append", help="(all)")
    parser.add_argument("--data", type=Path, help="the quick start's corpus, a folder")
    parser.add_argument("--text", type=Path, help="Tiny Shakespeare, a file")
    parser.add_argument("--minutes", type=float, default=9, help="for all steps, at most (9)")
    parser.add_argument("-o", "--output", type=Path, help="add the results to this file, too")
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
        seconds = min(STEPS[name][1], end - time.monotonic())
        if seconds < 5:
            write(json.dumps({"step": name, "failed": "no time is left"}) + "\n", arguments.output)
        if seconds < 5 or not start_step(name, seconds, arguments.output):
            failed.append(name)
    if failed:
        sys.exit(f"gpu_check: error: {', '.join(failed)} failed; the lines above say why")


if __name__ == "__main__":
    main()
