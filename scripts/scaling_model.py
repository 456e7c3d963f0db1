"""Estimate how training scales to many GPUs, from operation counts and assumed speeds.

Usage: python scripts/scaling_model.py [--recipe FILE ...] [--gpus 1 8 16 32 64] [--share 0.25]
           [--tflops 989] [--inside 370] [--between 45] [--memory 3350] [--launch 5]

Counted for each recipe: the products of an update, the bytes of its gradients, the operations that
one micro-batch starts, and the micro-batches that the toolkit makes of drawn lengths. Assumed:
everything that an option says, and those lengths. docs/wmt14.md explains.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from seq2seq.config import Config
from seq2seq.data.batching import micro_batches, share
from seq2seq.data.packing import pack_pairs
from seq2seq.model.recipe import load_config
from seq2seq.model.transformer import Transformer
from seq2seq.training.loss import ModelLoss

RECIPES = Path(__file__).parent.parent / "recipes" / "wmt14_en_de"
PER_MACHINE = 8
BUCKET = 25 * 2**20
"""Bytes per all-reduce of DDP."""
GRADIENT_BYTES, ADAM_BYTES = 4, 28
"""Bytes per parameter: its gradient in fp32, and the memory traffic of Adam."""


@dataclass(frozen=True)
class Work:
    """One update of a recipe, counted."""

    flops: float
    parameters: int
    table: int
    """Parameters of the shared table, whose gradient is whole at the very end of backward."""
    operations: int
    """Of one micro-batch, forward and backward."""
    tokens: int
    micro_batch_tokens: int


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view  # a view starts nothing
        return func(*args, **(kwargs or {}))


def count(config: Config) -> Work:
    """Count the work of one update; operations by running a narrow model of the same depth."""
    size = config.tokenizer.vocab_size
    with torch.device("meta"):
        model = Transformer(config.model, size)
    tokens = config.training.batch_tokens
    narrow = Transformer(
        config.model.__class__(**{**vars(config.model), "dim": 32, "ffn_dim": 32, "num_heads": 2}),
        16,
    )
    rows = [torch.arange(4, 12, dtype=torch.int32).numpy()] * 4
    with _Counter() as counter:
        loss, _ = ModelLoss(narrow, 0.1, 0.0)(pack_pairs(rows, rows, rows))
        loss.backward()
    return Work(
        flops=model.training_flops(tokens, tokens),
        parameters=model.num_parameters(),
        table=size * config.model.dim,
        operations=counter.count,
        tokens=tokens,
        micro_batch_tokens=config.training.micro_batch_tokens,
    )


def count_micro_batches(work: Work, gpus: int, updates: int = 20) -> float:
    """Return how many micro-batches the GPU that has most makes of an update, in the mean.

    Lengths are drawn: log-normal, 27 tokens in the mean, as those of news are about.
    """
    random, most = np.random.default_rng(1), []
    for _ in range(updates):
        lens = np.clip(random.lognormal(3.1, 0.6, work.tokens // 10), 2, 256).astype(np.int32)
        lens = lens[: np.searchsorted(lens.cumsum(), work.tokens) + 1]
        plans = [
            micro_batches(own, own, max_tokens=work.micro_batch_tokens, by_length=False)
            for own in (lens[share(lens, gpu, gpus)] for gpu in range(gpus))
        ]
        most.append(max(map(len, plans)))
    return float(np.mean(most))


def exchange_seconds(num_bytes: float, gpus: int, inside: float, between: float) -> float:
    """Return the time to all-reduce this many bytes, by rings, first inside the machines.

    inside, between: bytes per second that each GPU sends, to its machine's others and to others.
    """
    near = min(gpus, PER_MACHINE)
    machines = math.ceil(gpus / PER_MACHINE)
    seconds = 2 * (near - 1) / near * num_bytes / inside
    # Each GPU exchanges its own part of the sum with its like in the other machines.
    return seconds + 2 * (machines - 1) / machines * num_bytes / near / between


def update_seconds(work: Work, gpus: int, options: argparse.Namespace) -> tuple[float, float]:
    """Return the seconds of an update, and those of it that wait for the exchange."""
    passes = count_micro_batches(work, gpus)
    compute = max(
        work.flops / gpus / (options.share * options.tflops * 1e12),
        passes * work.operations * options.launch * 1e-6,
    )
    gradient = GRADIENT_BYTES * work.parameters
    speeds = options.inside * 1e9, options.between * 1e9
    exchange = exchange_seconds(gradient, gpus, *speeds)
    # Backward, two thirds of the last micro-batch, hides all but the last bucket, and that holds
    # the shared table: a parameter is not divided.
    hidden = 2 / 3 * compute / passes
    last = exchange_seconds(max(BUCKET, GRADIENT_BYTES * work.table), gpus, *speeds)
    waiting = max(exchange - hidden, last)
    optimizer = ADAM_BYTES * work.parameters / (options.memory * 1e9)
    return compute + waiting + optimizer, waiting


def main() -> None:
    """Parse the assumptions, and print a table for each recipe."""
    parser = argparse.ArgumentParser(description="a model of training on many GPUs")
    parser.add_argument("--recipe", type=Path, nargs="+",
                        default=[RECIPES / f"{name}.yaml" for name in ("base", "big",
                                                                       "fairseq_big")])  # fmt: skip
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 8, 16, 32, 64])
    parser.add_argument("--tflops", type=float, default=989, help="of the card, dense bf16")
    parser.add_argument("--share", type=float, default=0.25, help="of that, in products")
    parser.add_argument("--inside", type=float, default=370, help="GB/s of a GPU in its machine")
    parser.add_argument("--between", type=float, default=45, help="GB/s of a GPU to other machines")
    parser.add_argument("--memory", type=float, default=3350, help="GB/s of the card's memory")
    parser.add_argument("--launch", type=float, default=5, help="microseconds of each operation")
    options = parser.parse_args()
    for path in options.recipe:
        work = count(load_config(path))
        print(
            f"\n{path.stem}: {work.tokens:,} tokens per update, {work.flops / 1e12:,.0f} Tflop, "
            f"{work.parameters / 1e6:.1f} M parameters, "
            f"{GRADIENT_BYTES * work.parameters / 2**20:,.0f} MiB of gradients, "
            f"{work.operations:,} operations in a micro-batch\n"
        )
        print("| GPUs | ms an update | of it waiting | target tokens/s | efficiency |")
        print("|---|---|---|---|---|")
        alone, _ = update_seconds(work, 1, options)
        for gpus in options.gpus:
            seconds, waiting = update_seconds(work, gpus, options)
            print(f"| {gpus} | {seconds * 1e3:.1f} | {waiting * 1e3:.1f} | "
                  f"{work.tokens / seconds:,.0f} | {alone / gpus / seconds:.0%} |")  # fmt: skip


if __name__ == "__main__":
    main()
