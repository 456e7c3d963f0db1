"""A stack of layers: the encoder, the decoder, or all of a model that has only one."""

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
from seq2seq.model.cache import AttentionCache, Place
from seq2seq.model.dropout import Dropouts
from seq2seq.model.flash import find_kernel
from seq2seq.model.layers import Layer
from seq2seq.model.positions import Positions


class Stack(nn.Module):
    """Layers of one kind, and the positions they read; with pre-norm a last norm closes them."""

    def __init__(
        self, config: ModelConfig, depth: int, *, causal: bool = False, cross: bool = False
    ) -> None:
        """causal: a token attends to itself and to those before it alone. cross: with a memory."""
        super().__init__()
        self.config, self.causal = config, causal
        self.positions = Positions(config)
        self.layers = nn.ModuleList(Layer(config, cross=cross) for _ in range(depth))
        self.norm = nn.LayerNorm(config.dim) if config.norm == "pre" else nn.Identity()
        self.gradient_checkpointing = False
        """Whether training keeps only what goes into each layer, and computes the rest again."""

    def each_layer(self) -> list[Layer]:
        """Return the layers, typed as what they are."""
        return [cast(Layer, layer) for layer in self.layers]

    def embed(self, table: nn.Embedding, tokens: Tensor, positions: Tensor, end: int) -> Tensor:
        """Embed tokens, (...), each at its position in the sentence, below `end`: (..., D)."""
        x = table(tokens) * math.sqrt(self.config.dim)
        return self.positions.add(x, positions, end)

    def forward(
        self,
        table: nn.Embedding,
        side: Packed,
        windows: Windows,
        dropouts: Dropouts,
        memory: Tensor | None = None,
        memory_windows: Windows | None = None,
    ) -> Tensor:
        """Map packed tokens to hidden states, (N, D), with a packed memory, (M, D)."""
        end = side.tokens.shape[1]
        x = self.embed(table, side.ids, side.positions, end)
        # Half the bytes from layer to layer; with pre-norm, rounding would pile up layer by layer.
        if self.config.norm == "post":
            x = x.to(product_dtype(x))
        x = dropouts.residual.drop(x)
        width = self.config.dim // self.config.num_heads
        # The kernel knows no dropout.
        flash = None if dropouts.attention.probability else find_kernel(x, width)
        rotation = self.positions.rotation(side.positions, end, table.weight)
        own = Pattern(windows, windows, causal=self.causal, flash=flash, rotation=rotation)
        cross = Pattern(windows, memory_windows, flash=flash) if memory_windows else None
        recompute = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        for layer in self.layers:
            inputs = (x, own, dropouts, memory, cross)
            x = checkpoint(layer, *inputs, use_reentrant=False) if recompute else layer(*inputs)
        return self.norm(x)

    def step(
        self,
        table: nn.Embedding,
        tokens: Tensor,
        caches: list[AttentionCache],
        cross: list[tuple[Tensor, Tensor]] | None = None,
        cross_mask: Tensor | None = None,
    ) -> Tensor:
        """Feed the newest tokens of every hypothesis, (R, T), to a causal stack: (R, T, D)."""
        start, count = caches[0].length, tokens.shape[1]
        end = start + count
        positions = torch.arange(start, end, device=tokens.device)
        x = self.embed(table, tokens, positions, end)
        mask = None
        if count > 1:
            mask = positions[:, None] >= torch.arange(end, device=tokens.device)
        place = Place(mask, self.positions.rotation(positions, end, table.weight))
        for i, layer in enumerate(self.each_layer()):
            x = layer.step(x, place, caches[i], cross[i] if cross else None, cross_mask)
        return self.norm(x)
