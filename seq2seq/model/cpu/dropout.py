"""Dropout masks from one pool of random numbers for each pass.

On a CPU random numbers cost about as much as a small layer. The elements of a mask are independent;
two masks may share numbers, but hardly ever at the same positions.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

LEVELS = 2**8
"""The probability is rounded to 1/LEVELS: each element uses eight random bits."""
MAX_OFFSETS = 2**22
"""A mask begins at one of at most so many places of the pool."""


class MaskPool:
    """Masks of one probability: each is a slice of the pool from a random offset."""

    def __init__(self, probability: float, offsets: int) -> None:
        """offsets: number of places where a mask may begin; a few times the size of a mask."""
        self._dropped = min(max(round(probability * LEVELS), 1), LEVELS - 1)
        self._offsets = min(offsets, MAX_OFFSETS)
        # Drawn here and not with the pool: a layer that is recomputed in the backward pass must see
        # the same random state.
        seed = int(torch.randint(2**62, ())) if probability else 0
        self._random = np.random.SFC64(seed)  # several times as fast as torch's
        self._pool = torch.empty(0)

    def mask(self, x: Tensor) -> Tensor:
        """Return the mask to multiply x with."""
        start = int(torch.randint(self._offsets, ()))
        if (missing := self._offsets + x.numel() - len(self._pool)) > 0:
            more = self._draw(missing, x.dtype)
            self._pool = torch.cat([self._pool.to(more.dtype), more]) if len(self._pool) else more
        return self._pool[start : start + x.numel()].view(x.shape).to(x.dtype)

    def _draw(self, size: int, dtype: torch.dtype) -> Tensor:
        words = self._random.random_raw((size + 7) // 8)  # of 64 bits
        bits = torch.from_numpy(words.view(np.int8))
        # Avoids a boolean temporary: it would be several times as slow.
        pool = torch.empty(bits.shape, dtype=dtype)
        torch.ge(bits, self._dropped - LEVELS // 2, out=pool)
        return pool.mul_(LEVELS / (LEVELS - self._dropped))
