"""Sampling: temperature, top-k, top-p and reproducible random numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from seq2seq.errors import UserError


@dataclass(frozen=True)
class Sampling:
    """How to sample tokens."""

    temperature: float = 1.0
    """Divisor of the logits; 0 selects the most probable token."""
    top_k: int | None = None
    """Sample only from the K most probable tokens."""
    top_p: float | None = None
    """Sample only from the smallest set of most probable tokens with this total probability
    (nucleus sampling, Holtzman et al. 2020)."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise UserError(f"temperature={self.temperature} must be a number, and not negative")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k={self.top_k} must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top_p={self.top_p} must be above 0 and at most 1")

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return unnormalised probabilities, (R, V), for logits, (R, V)."""
        if self.temperature == 0:
            return torch.zeros_like(logits).scatter_(-1, logits.argmax(dim=-1, keepdim=True), 1.0)
        probs = (logits / self.temperature).softmax(dim=-1)
        if self.top_k is None and self.top_p is None:
            return probs
        ordered, order = probs.sort(dim=-1, descending=True, stable=True)
        kept = torch.ones_like(ordered, dtype=torch.bool)
        if self.top_k is not None:
            kept[:, self.top_k :] = False
        if self.top_p is not None:
            kept &= ordered.cumsum(dim=-1) - ordered < self.top_p
        return torch.zeros_like(probs).scatter_(-1, order, ordered * kept)


class Draws:
    """Random numbers for several samples, independent of their number."""

    def __init__(self, seed: int, samples: int) -> None:
        if seed < 0:
            raise UserError(f"seed={seed} must not be negative")
        self._randoms = [np.random.default_rng([seed, i]) for i in range(samples)]

    def draw(self, probabilities: Tensor) -> Tensor:
        """Sample a token for each row of probabilities, (R, V), which need not sum to 1."""
        return draw(probabilities, [random.random() for random in self._randoms])


def draw(probabilities: Tensor, numbers: Sequence[float]) -> Tensor:
    """Sample a token for each row of probabilities, (R, V), which need not sum to 1.

    By inversion of the cumulative distribution at `numbers`, from 0 to 1.
    """
    # In float64, which Apple's GPU does not support: float32 could round a number up to 1.
    device = torch.device("cpu") if probabilities.is_mps else probabilities.device
    ends = probabilities.to(device, torch.float64).cumsum(dim=-1)
    thresholds = torch.tensor(numbers, dtype=torch.float64, device=device)[:, None] * ends[:, -1:]
    # right=True, so that a token of probability 0 is never drawn.
    tokens = torch.searchsorted(ends, thresholds, right=True)[:, 0].clamp(max=ends.shape[1] - 1)
    return tokens.to(probabilities.device)
