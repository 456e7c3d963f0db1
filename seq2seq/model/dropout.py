"""Dropout whose masks cost little on a CPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

LEVELS = 2**8
"""The probability is rounded to 1/LEVELS, since eight random bits decide on an element."""
POOL = 4
"""How many masks of the largest size go into the pool."""


class Dropout:
    """The dropout of one pass through a model: sets elements to 0, and scales the others.

    On a CPU random numbers cost about as much as a small layer. So a pass draws a pool of them
    once, and each mask is a piece of the pool that begins at a random place: within a mask elements
    are independent, and two masks have in common at most what lies at other places in both.
    """

    def __init__(self, probability: float, largest: int) -> None:
        """largest: the number of elements of the largest tensor to come; no mask may be larger."""
        self.probability = probability
        self._largest = largest
        self._pool: Tensor | None = None

    def drop(self, x: Tensor) -> Tensor:
        """Return Dropout(x), of any shape."""
        if not self.probability:
            return x
        return x * self._mask(x) if self._has_pool(x) else F.dropout(x, self.probability)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Return x + Dropout(y), of any shape."""
        if not self.probability or not self._has_pool(y):
            return x + self.drop(y)
        return torch.addcmul(x, y, self._mask(y))

    @staticmethod
    def _has_pool(x: Tensor) -> bool:
        return x.device.type == "cpu" and not torch.compiler.is_compiling()

    def _mask(self, x: Tensor) -> Tensor:
        if self._pool is None:
            self._pool = self._draw_pool(x.dtype)
        start = int(torch.randint(len(self._pool) - x.numel() + 1, ()))
        return self._pool[start : start + x.numel()].view(x.shape).to(x.dtype)

    def _draw_pool(self, dtype: torch.dtype) -> Tensor:
        dropped = round(self.probability * LEVELS)
        # Seeded by torch's generator, drawn by one that is several times as fast.
        generator = np.random.SFC64(int(torch.randint(2**62, ())))
        words = generator.random_raw((POOL * self._largest + 7) // 8)  # of 64 bits, for 8 elements
        bits = torch.from_numpy(words.view(np.int8))
        # Straight to numbers: whatever goes through booleans is several times as slow.
        pool = torch.ge(bits, dropped - LEVELS // 2, out=torch.empty(bits.shape, dtype=dtype))
        return pool.mul_(LEVELS / (LEVELS - dropped))


NO_DROPOUT = Dropout(0.0, 0)
"""What passes outside training have."""
