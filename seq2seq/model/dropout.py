"""The dropouts of a forward pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from seq2seq.model.cpu.dropout import MaskPool


class Dropout(MaskPool):
    """Dropout for one forward pass: sets elements to 0 and scales the others."""

    def __init__(self, probability: float, offsets: int = 1) -> None:
        """offsets: see `MaskPool`."""
        self.probability = probability
        super().__init__(probability, offsets)

    def drop(self, x: Tensor) -> Tensor:
        """Return Dropout(x), of any shape."""
        if not self.probability:
            return x
        return x * self.mask(x) if _has_pool(x) else F.dropout(x, self.probability)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Return x + Dropout(y), of any shape."""
        if not self.probability or not _has_pool(y):
            return x + self.drop(y)
        return torch.addcmul(x, y, self.mask(y))


def _has_pool(x: Tensor) -> bool:
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


@dataclass(frozen=True)
class Dropouts:
    """The dropouts of one forward pass."""

    residual: Dropout
    """Applied to the embeddings and the output of each sublayer."""
    attention: Dropout
    """Applied to the attention weights."""
    activation: Dropout
    """Applied inside the feed-forward networks."""


NO_DROPOUT = Dropouts(Dropout(0.0), Dropout(0.0), Dropout(0.0))
"""For passes outside training."""
