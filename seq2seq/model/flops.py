"""How much arithmetic training is, and how much of it a machine could do."""

from __future__ import annotations

import time

import torch

from seq2seq.model.network import Network


def training_flops(
    model: Network, source_tokens: int, target_tokens: int, passes: int = 1
) -> float:
    """Return the floating-point operations of training on so many real tokens, so many times.

    Counted are the products with the weights, two operations for each weight and token forward and
    four backward (Kaplan et al. 2020, section 2.1), and a language model's own products of
    attention; not those of the other families, a few per cent at sentence length and more in long
    texts, nor what padding or recomputing costs.
    """
    source, target = model.products_per_token()
    return 6.0 * passes * (source_tokens * source + target_tokens * target)


def matmul_ceiling(device: torch.device, dtype: torch.dtype) -> float:
    """Measure how many operations a second large matrix products reach: the best of some tries."""
    size = 1024 if device.type == "cpu" else 8192
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best = float("inf")
    for _ in range(6):
        _wait(device)
        start = time.perf_counter()
        a @ b
        _wait(device)
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()
