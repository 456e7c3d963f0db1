"""A stack of layers: an encoder or a decoder."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from seq2seq.config import ModelConfig
from seq2seq.data.packing import Packed
from seq2seq.machine.precision import product_dtype
from seq2seq.model.attention import Pattern, Windows
from seq2seq.model.cache import AttentionCache, NewPositions
from seq2seq.model.dropout import Dropouts
from seq2seq.model.flash import find_kernel
from seq2seq.model.layers import Layer
from seq2seq.model.positions import Positions


class Stack(nn.Module):
    """Layers with their positional encoding and, for pre-norm, a final LayerNorm."""

    def __init__(
        self, config: ModelConfig, depth: int, *, causal: bool = False, cross: bool = False
    ) -> None:
        """causal: tokens only attend to earlier ones and themselves. cross: has cross-attention."""
        super().__init__()
        self.config, self.causal = config, causal
        self.positions = Positions(config)
        self.layers = nn.ModuleList(Layer(config, cross=cross) for _ in range(depth))
        self.norm = nn.LayerNorm(config.dim) if config.norm == "pre" else nn.Identity()
        self.gradient_checkpointing = False
        """Whether training stores only the input of each layer and recomputes the rest."""

    def each_layer(self) -> list[Layer]:
        """Return the layers, typed for mypy."""
        return [cast(Layer, layer) for layer in self.layers]

    def embed(self, embedding: nn.Embedding, tokens: Tensor, positions: Tensor, end: int) -> Tensor:
        """Embed tokens, (...), at `positions` below `end`: (..., D)."""
        x = embedding(tokens) * math.sqrt(self.config.dim)
        return self.positions.add(x, positions, end)

    def forward(
        self,
        embedding: nn.Embedding,
        side: Packed,
        windows: Windows,
        dropouts: Dropouts,
        memory: Tensor | None = None,
        memory_windows: Windows | None = None,
    ) -> Tensor:
        """Map packed tokens to hidden states, (N, D); memory: packed encoder output, (M, D)."""
        end = side.tokens.shape[1]
        x = self.embed(embedding, side.ids, side.positions, end)
        # Under autocast, bf16 hidden states halve the memory traffic. With pre-norm, rounding
        # errors would accumulate over the layers.
        if self.config.norm == "post":
            x = x.to(product_dtype(x))
        x = dropouts.residual.drop(x)
        width = self.config.dim // self.config.num_heads
        # The kernel does not support dropout.
        flash = None if dropouts.attention.probability else find_kernel(x, width)
        rotation = self.positions.rotation(side.positions, end, embedding.weight)
        self_pattern = Pattern(windows, windows, causal=self.causal, flash=flash, rotation=rotation)
        cross_pattern = Pattern(windows, memory_windows, flash=flash) if memory_windows else None
        recompute = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        for layer in self.layers:
            inputs = (x, self_pattern, dropouts, memory, cross_pattern)
            x = checkpoint(layer, *inputs, use_reentrant=False) if recompute else layer(*inputs)
        return self.norm(x)

    def step(
        self,
        embedding: nn.Embedding,
        tokens: Tensor,
        caches: list[AttentionCache],
        cross: list[tuple[Tensor, Tensor]] | None = None,
        cross_mask: Tensor | None = None,
        attention: list[Tensor] | None = None,
    ) -> Tensor:
        """Feed the newest tokens of every hypothesis, (R, T), to a causal stack: (R, T, D).

        attention: where to append each layer's cross-attention weights, (B, H, W*T, S).
        """
        start, count = caches[0].length, tokens.shape[1]
        end = start + count
        positions = torch.arange(start, end, device=tokens.device)
        x = self.embed(embedding, tokens, positions, end)
        mask = None
        if count > 1:
            mask = positions[:, None] >= torch.arange(end, device=tokens.device)
        rotation = self.positions.rotation(positions, end, embedding.weight)
        new = NewPositions(mask, rotation, attention)
        for i, layer in enumerate(self.each_layer()):
            x = layer.step(x, new, caches[i], cross[i] if cross else None, cross_mask)
        return self.norm(x)
