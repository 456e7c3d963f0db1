"""Measure this toolkit's own Muon and R-Drop loss against those made of plain torch.

Usage: python scripts/bench_alternatives.py [--rounds N]

muon: one step for the matrices of six layers, with gradients; torch.optim.Muon computes its
products in bf16, and has neither another precision nor `found_inf`. r_drop: loss and gradients of
one batch of hidden states with R-Drop, against autograd through chunks of 2,048 rows, which keeps
the logits of all chunks or, with checkpointing, computes them twice. Alternating, medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from seq2seq.machine.devices import describe_device
from seq2seq.machine.precision import resolve_precision
from seq2seq.training.loss import CHUNK_ROWS, smoothed_cross_entropy
from seq2seq.training.muon import Muon

CPU = torch.device("cpu")
WIDTHS = (128, 256, 512)
LOSSES = ((128, 6_000, 2_048), (256, 8_000, 4_096))
"""Model width, vocabulary size and number of labels."""
SMOOTHING, ALPHA = 0.1, 2.5


def medians(works: dict[str, Callable[[], object]], rounds: int) -> str:
    """Run the works in turn; return the median milliseconds of each, without a first round."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds + 1):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start)
    return "  ".join(
        f"{name} {1e3 * statistics.median(each[1:]):,.1f} ms" for name, each in seconds.items()
    )


def compare_muon(width: int, dtype: torch.dtype, rounds: int) -> str:
    """Compare one step of both implementations, for layers of this width."""
    one, two, wide = (width, width), (2 * width, width), (4 * width, width)
    shapes = 6 * [one, two, one, one, two, one, wide, wide[::-1]]
    matrices = [nn.Parameter(torch.randn(shape) * 0.02) for shape in shapes]
    for matrix in matrices:
        matrix.grad = torch.randn_like(matrix)
    own = Muon(matrices, dtype)
    own.param_groups[0]["lr"] = 1e-3
    torchs = torch.optim.Muon(matrices, lr=1e-3, adjust_lr_fn="match_rms_adamw")
    return medians({"own": own.step, "torch.optim.Muon": torchs.step}, rounds)


def plain_loss(first: Tensor, second: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Return the label-smoothed loss with R-Drop of two passes, by the formula."""
    p, q = (F.linear(each, weight).float().log_softmax(dim=-1) for each in (first, second))
    divergence = ((p.exp() - q.exp()) * (p - q)).sum() / 2
    losses = [F.cross_entropy(each, targets, reduction="sum", label_smoothing=SMOOTHING)
              for each in (p, q)]  # fmt: skip
    return sum(losses, torch.zeros(())) / 2 + ALPHA * divergence


def compare_r_drop(width: int, vocab_size: int, count: int, bf16: bool, rounds: int) -> str:
    """Compare loss and gradients of two passes."""
    weight = nn.Parameter(torch.randn(vocab_size, width) * width**-0.5)
    passes = [torch.randn(count, width, requires_grad=True) for _ in range(2)]
    targets = torch.randint(0, vocab_size, (count,))

    def own() -> Tensor:
        return smoothed_cross_entropy(passes, weight, targets, count, SMOOTHING, ALPHA)[0]

    def autograd(recompute: bool = False) -> Tensor:
        total = torch.zeros(())
        for start in range(0, count, CHUNK_ROWS):
            chunk = slice(start, start + CHUNK_ROWS)
            inputs = passes[0][chunk], passes[1][chunk], weight, targets[chunk]
            total = total + (
                checkpoint(plain_loss, *inputs, use_reentrant=False)
                if recompute
                else plain_loss(*inputs)
            )
        return total

    def backward(loss: Callable[[], Tensor]) -> Callable[[], None]:
        def work() -> None:
            for tensor in (weight, *passes):
                tensor.grad = None
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
                value = loss()
            value.backward()

        return work

    works = {"own": own, "autograd": autograd, "checkpointed": lambda: autograd(recompute=True)}
    return medians({name: backward(loss) for name, loss in works.items()}, rounds)


def main() -> None:
    """Parse the arguments and print a line for each shape and precision."""
    parser = argparse.ArgumentParser(description="own implementations against plain torch")
    parser.add_argument("--rounds", type=int, default=7, metavar="N")
    rounds = parser.parse_args().rounds
    print(describe_device(CPU), f"{torch.get_num_threads()} threads")
    precisions = ["fp32"] + (["bf16"] if resolve_precision("auto", CPU) == "bf16" else [])
    for precision in precisions:
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        for width in WIDTHS:
            print(f"muon {precision} D={width}: {compare_muon(width, dtype, rounds)}", flush=True)
        for width, vocab_size, count in LOSSES:
            result = compare_r_drop(width, vocab_size, count, precision == "bf16", rounds)
            print(f"r_drop {precision} D={width} V={vocab_size}: {result}", flush=True)


if __name__ == "__main__":
    main()
