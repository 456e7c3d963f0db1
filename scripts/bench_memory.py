"""Measure peak memory and speed with gradient checkpointing and smaller micro-batches.

Usage: python scripts/bench_memory.py [--shape tiny|base|big ...] [--tokens N] [--updates N]
       [--growth] [--json]

Each row is a separate process that trains on random tokens in sentences of natural length. Peak
memory is measured on the GPU if there is one, else for the process. --growth: memory in use after
some of the updates of a training, each with new sentences.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, PartialState
from numpy.typing import NDArray

from seq2seq.config import ModelConfig, TrainingConfig
from seq2seq.data.batching import micro_batches
from seq2seq.data.packing import Batch, pack_pairs
from seq2seq.machine.devices import describe_device
from seq2seq.machine.memory import keep_freed_memory, memory_in_use
from seq2seq.machine.precision import DTYPES, resolve_precision
from seq2seq.model.attention import needs_rows
from seq2seq.model.transformer import Transformer
from seq2seq.training.update import Updater

SHAPES = {
    "tiny": ModelConfig(
        dim=128, ffn_dim=512, num_heads=4, encoder_layers=3, decoder_layers=3, norm="pre",
        positions="rotary",
    ),
    "base": ModelConfig(),
    "big": ModelConfig(dim=1024, ffn_dim=4096, num_heads=16, dropout=0.3),
}  # fmt: skip
VOCABULARY = 37_000
TINY_VOCABULARY = 8_000
SHARES = {"full": 1, "an eighth": 8}
"""Fractions of an update per micro-batch."""


def random_rows(tokens: int, vocabulary: int, seed: int = 1) -> list[NDArray[np.int32]]:
    """Return random sentences of natural length, of so many tokens in all."""
    random = np.random.default_rng(seed)
    lens = np.clip(random.lognormal(3.1, 0.5, tokens).astype(np.int32), 2, 120)  # mean about 25
    lens = lens[: int(np.searchsorted(lens.cumsum(), tokens))]
    return [random.integers(4, vocabulary, size).astype(np.int32) for size in lens]


def make_update(
    rows: Sequence[NDArray[np.int32]], max_tokens: int, *, by_length: bool
) -> list[Batch]:
    """Return the micro-batches of one update."""
    lens = np.array([len(row) for row in rows], dtype=np.int32)
    plan = micro_batches(lens, lens, max_tokens=max_tokens, by_length=by_length)
    parts = [[rows[i] for i in places] for places in plan]
    return [pack_pairs(part, part, part) for part in parts]


def make_updater(shape: str, checkpointing: bool, vocabulary: int) -> Updater:
    """Return what trains a model on this machine's device."""
    device = PartialState().device
    if device.type == "cpu":
        keep_freed_memory()
    torch.manual_seed(1)
    model = Transformer(SHAPES[shape], vocabulary)
    model.gradient_checkpointing = checkpointing
    accelerator = Accelerator(mixed_precision="no")
    return Updater(model, TrainingConfig(), accelerator, resolve_precision("auto", device))


def packed_by_length(updater: Updater) -> bool:
    """Return whether sentences of like length must share micro-batches."""
    shape, dtype = updater.model.config, DTYPES[updater.precision]
    width = shape.dim // shape.num_heads
    return needs_rows(updater.device, dtype, width, shape.attention_dropout)


def measure(
    shape: str, tokens: int, share: int, checkpointing: bool, updates: int
) -> dict[str, Any]:
    """Train on this machine's device; return tokens per second and peak memory."""
    updater = make_updater(shape, checkpointing, VOCABULARY)
    rows = random_rows(tokens, VOCABULARY)
    batches = make_update(rows, -(-tokens // share), by_length=packed_by_length(updater))
    num_tokens = sum(batch.num_labels for batch in batches)
    updater.update(batches, num_tokens, 1e-4)[0].tolist()  # warms up, and waits for a GPU
    start = time.perf_counter()
    for _ in range(updates):
        sums, *_ = updater.update(batches, num_tokens, 1e-4)
    sums.tolist()
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if updater.device.type == "cuda":
        peak = torch.cuda.max_memory_allocated() / 2**20
    speed = updates * num_tokens / seconds
    return {"tokens_per_second": speed, "peak_mib": peak, "precision": updater.precision}


def growth(shape: str, tokens: int, updates: int) -> dict[str, Any]:
    """Train on other sentences in each update; return the memory in use after some of them."""
    vocabulary = TINY_VOCABULARY if shape == "tiny" else VOCABULARY
    updater = make_updater(shape, checkpointing=False, vocabulary=vocabulary)
    by_length, in_use, trained = packed_by_length(updater), {}, 0
    points = {max(1, updates * share // 20) for share in (1, 5, 10, 15, 20)}
    start = time.perf_counter()
    for i in range(1, updates + 1):
        rows = random_rows(tokens, vocabulary, seed=i)
        batches = make_update(rows, tokens, by_length=by_length)
        num_tokens = sum(batch.num_labels for batch in batches)
        updater.update(batches, num_tokens, 1e-4)
        trained += num_tokens
        if i in points:
            in_use[str(i)] = round(memory_in_use(updater.device) / 2**20)
    speed = trained / (time.perf_counter() - start)
    return {"tokens_per_second": speed, "in_use_mib": in_use, "precision": updater.precision}


def main() -> None:
    """Parse the arguments; measure one row, or start a process for each."""
    parser = argparse.ArgumentParser(description="memory and speed of training")
    parser.add_argument("--shape", choices=[*SHAPES], action="append", help="(base, big)")
    parser.add_argument("--tokens", type=int, default=8192, help="target tokens of an update")
    parser.add_argument("--updates", type=int, default=2)
    parser.add_argument(
        "--growth", action="store_true", help="memory in the course of a training of one shape"
    )
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.row:
        [shape], share = options.shape, SHARES[options.row[0]]
        frugal = options.row[1] == "on"
        print(json.dumps(measure(shape, options.tokens, share, frugal, options.updates)))
        return
    print(describe_device(PartialState().device), file=sys.stderr)
    if options.growth:
        [shape] = options.shape or ["tiny"]
        print(json.dumps({"shape": shape, **growth(shape, options.tokens, options.updates)}))
        return
    rows = []
    for shape, part, checkpointing in product(
        options.shape or ["base", "big"], SHARES, ("off", "on")
    ):
        command = [
            sys.executable, __file__, "--shape", shape, "--tokens", str(options.tokens),
            "--updates", str(options.updates), "--row", part, checkpointing,
        ]  # fmt: skip
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        row = {"shape": shape, "micro_batch": part, "checkpointing": checkpointing}
        rows.append(row | json.loads(done.stdout))
        if not options.json:
            print(
                f"{shape:5} micro-batch {part:10} checkpointing {checkpointing:4} "
                f"{rows[-1]['tokens_per_second']:8,.0f} tokens/s {rows[-1]['peak_mib']:8,.0f} MiB",
                flush=True,
            )
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
