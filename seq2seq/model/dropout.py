"""Dropout.

On a CPU generating random numbers costs about as much as a small layer. So the factors of all
tensors of a forward pass are slices of one random pool. The elements of a slice are independent;
two slices may overlap in the pool, but hardly ever at the same positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

LEVELS = 2**8
"""On a CPU each element uses eight random bits: the probability is rounded to 1/LEVELS."""
MAX_OFFSETS = 2**22
"""Maximum number of positions in the pool where a slice may begin."""


class Dropout:
    """Dropout for one forward pass: sets elements to 0 and scales the others."""

    def __init__(self, probability: float, offsets: int = 1) -> None:
        """offsets: number of positions where a slice may begin; a few times its length."""
        self.probability = probability
        self._dropped = min(max(round(probability * LEVELS), 1), LEVELS - 1)
        self._offsets = min(offsets, MAX_OFFSETS)
        # Drawn before the pool: a layer recomputed in the backward pass must see an equal random
        # state.
        seed = int(torch.randint(2**62, ())) if probability else 0
        self._random = np.random.SFC64(seed)  # several times as fast as torch's
        self._pool = torch.empty(0)

    def drop(self, x: Tensor) -> Tensor:
        """Return Dropout(x), of any shape."""
        if not self.probability:
            return x
        return x * self.factors(x) if x.device.type == "cpu" else F.dropout(x, self.probability)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Return x + Dropout(y), of any shape."""
        if self.probability and y.device.type == "cpu":
            return torch.addcmul(x, y, self.factors(y))
        return x + self.drop(y)

    def factors(self, x: Tensor) -> Tensor:
        """Return factors of x: 0, or 1 / (1 - probability); CPU only."""
        start = int(torch.randint(self._offsets, ()))
        if (missing := self._offsets + x.numel() - len(self._pool)) > 0:
            more = self._draw(missing, x.dtype)
            self._pool = torch.cat([self._pool.to(more.dtype), more]) if len(self._pool) else more
        return self._pool[start : start + x.numel()].view(x.shape).to(x.dtype)

    def _draw(self, size: int, dtype: torch.dtype) -> Tensor:
        words = self._random.random_raw((size + 7) // 8)  # 64-bit words
        bits = torch.from_numpy(words.view(np.int8))
        # Avoids a boolean temporary: it would be several times as slow.
        pool = torch.empty(bits.shape, dtype=dtype)
        torch.ge(bits, self._dropped - LEVELS // 2, out=pool)
        return pool.mul_(LEVELS / (LEVELS - self._dropped))


@dataclass(frozen=True)
class Dropouts:
    """Dropout of each kind for one forward pass."""

    residual: Dropout
    """Applied to the embeddings and the output of each sublayer."""
    attention: Dropout
    """Applied to the attention weights."""
    activation: Dropout
    """Applied inside the feed-forward networks."""


NO_DROPOUT = Dropouts(Dropout(0.0), Dropout(0.0), Dropout(0.0))
"""For inference."""
