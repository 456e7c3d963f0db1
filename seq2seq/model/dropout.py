"""Dropout whose masks cost little on a CPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

LEVELS = 2**8
"""The probability is rounded to 1/LEVELS, since eight random bits decide on an element."""
POOL, SLACK = 4, 2**22
"""A pool has POOL times the elements of the largest mask, or SLACK more than it, whichever is
less."""


class Dropout:
    """One dropout of one pass through a model: sets elements to 0, and scales the others.

    On a CPU random numbers cost about as much as a small layer. So a pass draws a pool of them
    once, and each mask is a piece of the pool that begins at a random place: within a mask elements
    are independent, and two masks have in common at most what lies at other places in both.
    """

    def __init__(self, probability: float, largest: int) -> None:
        """largest: the number of elements of the largest tensor to come; no mask may be larger."""
        self.probability = probability
        self._size = min(POOL * largest, largest + SLACK)
        # Now, and not when the pool is first needed: a layer that is computed again would then not
        # find the random numbers as they were.
        self._seed = int(torch.randint(2**62, ())) if probability else 0
        self._pool: Tensor | None = None

    def drop(self, x: Tensor) -> Tensor:
        """Return Dropout(x), of any shape."""
        if not self.probability:
            return x
        return x * self.mask(x) if self._has_pool(x) else F.dropout(x, self.probability)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Return x + Dropout(y), of any shape."""
        if not self.probability or not self._has_pool(y):
            return x + self.drop(y)
        return torch.addcmul(x, y, self.mask(y))

    @staticmethod
    def _has_pool(x: Tensor) -> bool:
        return x.device.type == "cpu" and not torch.compiler.is_compiling()

    def mask(self, x: Tensor) -> Tensor:
        """Return what to multiply x with, on a CPU."""
        if self._pool is None:
            self._pool = self._draw_pool(x.dtype)
        start = int(torch.randint(len(self._pool) - x.numel() + 1, ()))
        return self._pool[start : start + x.numel()].view(x.shape).to(x.dtype)

    def _draw_pool(self, dtype: torch.dtype) -> Tensor:
        dropped = round(self.probability * LEVELS)
        # Seeded by torch's generator, drawn by one that is several times as fast.
        words = np.random.SFC64(self._seed).random_raw((self._size + 7) // 8)  # of 64 bits
        bits = torch.from_numpy(words.view(np.int8))
        # Straight to numbers: whatever goes through booleans is several times as slow.
        pool = torch.ge(bits, dropped - LEVELS // 2, out=torch.empty(bits.shape, dtype=dtype))
        return pool.mul_(LEVELS / (LEVELS - dropped))


@dataclass(frozen=True)
class Dropouts:
    """The dropouts of one pass."""

    residual: Dropout
    """Of the embeddings and of what each sublayer adds."""
    attention: Dropout
    """Of the attention weights."""
    activation: Dropout
    """Inside the feed-forward networks."""


_NONE = Dropout(0.0, 0)
NO_DROPOUT = Dropouts(_NONE, _NONE, _NONE)
"""What passes outside training have."""
