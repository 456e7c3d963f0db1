"""Dropout with masks that are cheap on a CPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

LEVELS = 2**8
"""On a CPU the probability is rounded to 1/LEVELS: each element uses eight random bits."""
POOL, SLACK = 4, 2**22
"""A pool has POOL times the elements of the largest mask, or at most SLACK more than it."""


class Dropout:
    """Dropout for one forward pass: sets elements to 0 and scales the others.

    On a CPU random numbers cost about as much as a small layer. So each pass draws one pool of
    them, and each mask is a slice of it from a random offset. The elements of a mask are
    independent; two masks may share numbers, but hardly ever at the same positions.
    """

    def __init__(self, probability: float, largest: int) -> None:
        """largest: maximum number of elements of a mask."""
        self.probability = probability
        self._size = min(POOL * largest, largest + SLACK)
        # Drawn here and not with the pool: a layer that is recomputed in the backward pass must see
        # the same random state.
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
        """Return the mask to multiply x with; for a CPU."""
        if self._pool is None:
            self._pool = self._draw_pool(x.dtype)
        start = int(torch.randint(len(self._pool) - x.numel() + 1, ()))
        return self._pool[start : start + x.numel()].view(x.shape).to(x.dtype)

    def _draw_pool(self, dtype: torch.dtype) -> Tensor:
        dropped = round(self.probability * LEVELS)
        # Seeded by torch's generator, but drawn by NumPy's, which is several times as fast.
        words = np.random.SFC64(self._seed).random_raw((self._size + 7) // 8)  # of 64 bits
        bits = torch.from_numpy(words.view(np.int8))
        # Without a boolean tensor in between, which would be several times as slow.
        pool = torch.ge(bits, dropped - LEVELS // 2, out=torch.empty(bits.shape, dtype=dtype))
        return pool.mul_(LEVELS / (LEVELS - dropped))


@dataclass(frozen=True)
class Dropouts:
    """The dropouts of one forward pass."""

    residual: Dropout
    """Applied to the embeddings and the output of each sublayer."""
    attention: Dropout
    """Applied to the attention weights."""
    activation: Dropout
    """Applied inside the feed-forward networks."""


_NONE = Dropout(0.0, 0)
NO_DROPOUT = Dropouts(_NONE, _NONE, _NONE)
"""For passes outside training."""
