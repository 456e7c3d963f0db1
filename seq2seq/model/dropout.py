"""Dropout whose masks cost little on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

LEVELS = 2**8
"""The probability is rounded to 1/LEVELS, since eight random bits decide on an element."""


class _CheapDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        dropped = round(probability * LEVELS)
        # Seeded by torch's generator, drawn by one that is several times as fast.
        generator = np.random.SFC64(int(torch.randint(2**62, ())))
        words = generator.random_raw((x.numel() + 7) // 8)  # of 64 bits, for eight elements each
        bits = torch.from_numpy(words.view(np.int8))[: x.numel()].view(x.shape)
        # Straight to numbers: whatever goes through booleans is several times as slow.
        mask = torch.ge(bits, dropped - LEVELS // 2, out=torch.empty_like(x))
        mask.mul_(LEVELS / (LEVELS - dropped))
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return grad * mask, None


class Dropout(nn.Module):
    """Sets elements to 0 with a probability and scales the others, in training alone."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        if not self.training or not self.probability:
            return x
        if x.device.type == "cpu" and not torch.compiler.is_compiling():
            return _CheapDropout.apply(x, self.probability)
        return F.dropout(x, self.probability)
