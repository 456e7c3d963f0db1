"""Positional encodings."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from seq2seq.config import ModelConfig

Rotation = tuple[Tensor, Tensor]
"""Sines and cosines of the rotation angles of each token (RoPE)."""


def sinusoids(length: int, dim: int, kind: str = "sinusoidal") -> Tensor:
    """Return the sinusoidal positional embeddings of Vaswani et al. 2017, section 3.5.

    Returns shape (length, D): the sines of the D/2 frequencies 10000^(-2i/D), then the cosines of
    the same frequencies. (The paper interleaves the two; this is a permutation of it.) kind: with
    marian and fairseq, the frequencies are 10000^(-i/(D/2 - 1)); with fairseq, the first position
    is 2.
    """
    # In float64: float32 angles are too inexact for large positions.
    indices = torch.arange(dim // 2, dtype=torch.float64)
    exponent = indices / (dim / 2 - 1) if kind in ("marian", "fairseq") else 2 * indices / dim
    positions = torch.arange(length, dtype=torch.float64) + (2 if kind == "fairseq" else 0)
    angles = torch.outer(positions, 10000.0**-exponent)
    return torch.cat([angles.sin(), angles.cos()], dim=-1).float()


class Positions(nn.Module):
    """Positional encoding of a stack of layers."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.kind, self.dim = config.positions, config.dim
        self.width = config.dim // config.num_heads if config.positions == "rotary" else config.dim
        # Not a buffer: the table is neither saved nor synchronised, and grows as needed.
        self.table = torch.empty(0, self.width)
        if self.kind == "learned":
            self.weight = nn.Parameter(torch.empty(config.context, config.dim))

    def rows(self, length: int) -> Tensor:
        """Return the embeddings of the first `length` positions, (length, D); learned: of all.

        Rotary: sines and cosines of the angles of a head, (length, K).
        """
        if self.kind == "learned":
            # Scaled like the token embeddings, or they would be too small and learn too slowly.
            return self.weight * math.sqrt(self.dim)
        return sinusoids(length, self.width, self.kind)

    def add(self, x: Tensor, positions: Tensor, end: int) -> Tensor:
        """Add positional embeddings to embeddings, (..., D); all `positions` are below `end`."""
        if self.kind == "learned":
            return x + nn.functional.embedding(positions, self.weight) * math.sqrt(self.dim)
        return x if self.kind == "rotary" else x + self._lookup(positions, end, x)

    def rotation(self, positions: Tensor, end: int, like: Tensor) -> Rotation | None:
        """Return sines and cosines for `rotate_`, (..., K/2), in the data type of `like`.

        Returns None unless the encoding is rotary.
        """
        if self.kind != "rotary":
            return None
        sines, cosines = self._lookup(positions, end, like).chunk(2, dim=-1)
        return sines, cosines

    def _lookup(self, positions: Tensor, end: int, like: Tensor) -> Tensor:
        # Tensors created in inference mode could not be used in training afterwards.
        with torch.inference_mode(False):
            if end > len(self.table):
                self.table = self.rows(max(end, 2 * len(self.table), 256))
            self.table = self.table.to(device=positions.device, dtype=like.dtype)
        return self.table[positions]


def rotate_(x: Tensor, count: int, sines: Tensor, cosines: Tensor) -> Tensor:
    """Rotate pairs (x_i, x_(i + K/2)) of the first `count` = 2*H heads of (..., 3*H*K), in place.

    sines, cosines: (..., K/2), of the angles position * frequency i. The product of a query and a
    key then depends only on their distance (RoPE, Su et al. 2021, section 3.2.2). The paper rotates
    adjacent pairs; this is a permutation of it.
    """
    heads = x.unflatten(-1, (count // 2 * 3, -1))[..., :count, :]
    first, second = heads.chunk(2, dim=-1)
    sines, cosines = sines[..., None, :].to(x.dtype), cosines[..., None, :].to(x.dtype)
    crossed = first * sines
    first.mul_(cosines).addcmul_(second, sines, value=-1)
    second.mul_(cosines).add_(crossed)
    return x


class Rotate(torch.autograd.Function):
    """`rotate_` with a backward pass: it rotates the gradient back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int, sines: Tensor, cosines: Tensor) -> Tensor:
        ctx.save_for_backward(sines, cosines)
        ctx.count = count
        ctx.mark_dirty(x)
        return rotate_(x, count, sines, cosines)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        sines, cosines = ctx.saved_tensors
        return rotate_(grad.clone(), ctx.count, -sines, cosines), None, None, None
