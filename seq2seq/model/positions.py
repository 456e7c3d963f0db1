"""Where in the sentence a token stands."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from seq2seq.config import ModelConfig

Rotation = tuple[Tensor, Tensor]
"""Sines and cosines of the angles by which each token's heads are turned."""


def _angles(length: int, dim: int) -> Tensor:
    """Return position * 10000^(-2i/D) for the D/2 frequencies, (length, D/2)."""
    # In float64: at large positions float32 angles lose digits that the sine then shows.
    exponent = torch.arange(0, dim, 2, dtype=torch.float64) / dim
    position = torch.arange(length, dtype=torch.float64)
    return torch.outer(position, 10000.0**-exponent)


def sinusoids(length: int, dim: int) -> Tensor:
    """Return the sinusoidal position table of Vaswani et al. 2017, section 3.5.

    Returns shape (length, D): the sines of the D/2 frequencies 10000^(-2i/D), then the cosines of
    the same frequencies. (The paper interleaves the two; this is a permutation of it.)
    """
    angles = _angles(length, dim)
    return torch.cat([angles.sin(), angles.cos()], dim=-1).float()


class Positions(nn.Module):
    """What a stack of layers knows of its tokens' places."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.kind, self.dim = config.positions, config.dim
        self._width = config.dim // config.num_heads if config.positions == "rotary" else config.dim
        # No buffer: it is neither stored nor exchanged, and grows on one process alone.
        self._table = torch.empty(0, self._width)
        if self.kind == "learned":
            self.weight = nn.Parameter(torch.empty(config.context, config.dim))

    def add(self, x: Tensor, positions: Tensor, end: int) -> Tensor:
        """Add to embeddings, (..., D), what says that they are at `positions`, all below `end`."""
        if self.kind == "learned":
            # Scaled like the tokens' embeddings, beside which it would be too small and too slow.
            return x + nn.functional.embedding(positions, self.weight) * math.sqrt(self.dim)
        return x if self.kind == "rotary" else x + self._rows(positions, end, x)

    def rotation(self, positions: Tensor, end: int, like: Tensor) -> Rotation | None:
        """Return the sines and cosines for `rotate_`, (..., K/2), of the type of `like`.

        None unless positions are rotary.
        """
        if self.kind != "rotary":
            return None
        sines, cosines = self._rows(positions, end, like).chunk(2, dim=-1)
        return sines, cosines

    def _rows(self, positions: Tensor, end: int, like: Tensor) -> Tensor:
        # A table made in inference mode could not be used in training afterwards.
        with torch.inference_mode(False):
            if end > len(self._table):
                self._table = sinusoids(max(end, 2 * len(self._table), 256), self._width)
            self._table = self._table.to(device=positions.device, dtype=like.dtype)
        return self._table[positions]


def rotate_(x: Tensor, sines: Tensor, cosines: Tensor) -> Tensor:
    """Turn each pair (x_i, x_(i + K/2)) of heads, (..., K), by its position's angle of frequency i.

    In place. sines, cosines: broadcastable to (..., K/2). The product of a query and a key then
    depends on how far they are apart (Su et al. 2021, section 3.2.2, which pairs neighbours
    instead).
    """
    first, second = x.chunk(2, dim=-1)
    sines, cosines = sines.to(x.dtype), cosines.to(x.dtype)
    crossed = first * sines
    first.mul_(cosines).addcmul_(second, sines, value=-1)
    second.mul_(cosines).add_(crossed)
    return x


class _RotateHeads(torch.autograd.Function):
    """`rotate_` of the first heads of (N, H'K); backward turns the gradient back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int, sines: Tensor, cosines: Tensor) -> Tensor:
        ctx.save_for_backward(sines, cosines)
        ctx.count = count
        ctx.mark_dirty(x)
        _turn(x, count, sines, cosines)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        sines, cosines = ctx.saved_tensors
        grad = grad.clone()
        _turn(grad, ctx.count, -sines, cosines)
        return grad, None, None, None


def _turn(x: Tensor, count: int, sines: Tensor, cosines: Tensor) -> None:
    heads = x.unflatten(-1, (-1, 2 * sines.shape[-1]))
    rotate_(heads[:, :count], sines[:, None], cosines[:, None])


def rotate_heads(x: Tensor, count: int, rotation: Rotation) -> Tensor:
    """Rotate the first `count` of each token's heads, (N, H'K), in place; the others stay."""
    return _RotateHeads.apply(x, count, *rotation)
