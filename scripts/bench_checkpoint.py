"""Measure how long a checkpoint interrupts training, and how long it takes until it is on the disk.

Usage: python scripts/bench_checkpoint.py [--folder DIR] [--json]

Weights and Adam's state of the paper's base model with 32,000 pieces; medians of five checkpoints.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from seq2seq.config import Config, TokenizerConfig
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.machine.devices import describe_device
from seq2seq.machine.memory import keep_freed_memory
from seq2seq.model.directory import snapshot
from seq2seq.model.transformer import Transformer
from seq2seq.preparation.train_vocabulary import train_vocabulary
from seq2seq.training.checkpoint import RunState
from seq2seq.training.optimizer import build_optimizers, optimizer_state, step_optimizers
from seq2seq.training.run_directory import RunDirectory, Snapshot

PIECES = 32_000
ROUNDS = 5


def measure(run: Path) -> dict[str, float]:
    """Return seconds of pause and of writing, and the checkpoint's megabytes."""
    config = Config()
    model = Transformer(config.model, PIECES)
    optimizers = build_optimizers(model, config.training, torch.float32)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    step_optimizers(optimizers, 1e-4)
    vocabulary = train_vocabulary(["a b c d e f"] * 9, TokenizerConfig(vocab_size=270), [])
    directory, tokenizer = RunDirectory(run), Tokenizer(vocabulary, vocabulary)
    pauses, totals = [], []
    for step in range(ROUNDS):
        start = time.monotonic()
        directory.save_checkpoint(
            RunState(step=step),
            Snapshot(config, tokenizer, snapshot(model), optimizer_state(optimizers)),
            keep_last=5,
        )
        pauses.append(time.monotonic() - start)
        directory.wait()
        totals.append(time.monotonic() - start)
    files = (run / "checkpoints" / "step_4").iterdir()
    return {
        "pause_seconds": statistics.median(pauses),
        "total_seconds": statistics.median(totals),
        "megabytes": sum(path.stat().st_size for path in files) / 1e6,
    }


def main() -> None:
    """Parse the arguments and print the table."""
    parser = argparse.ArgumentParser(description="pause and duration of a checkpoint")
    parser.add_argument("--folder", type=Path, help="where to write (temporary folder)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    keep_freed_memory()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        result = measure(Path(folder))
    hardware = describe_device(torch.device("cpu"))
    if options.json:
        print(json.dumps({"hardware": hardware, **result}))
        return
    print(hardware)
    for name, value in result.items():
        print(f"{name:15} {value:8.2f}")


if __name__ == "__main__":
    main()
