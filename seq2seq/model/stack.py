"""A stack of layers: an encoder or a decoder."""

from __future__ import annotations

import math
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from seq2seq.config import ModelConfig
from seq2seq.data.packing import Packed
from seq2seq.machine.precision import product_dtype
from seq2seq.model.cache import DecoderState
from seq2seq.model.dropout import Dropouts
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
        own: Packed,
        dropouts: Dropouts,
        memory: Tensor | None = None,
        other: Packed | None = None,
    ) -> Tensor:
        """Map packed tokens to hidden states, (N, D).

        memory: the encoder's output, (M, D), of the packed tokens `other`.
        """
        x = self.embed(embedding, own.ids, own.positions, own.longest)
        # Under autocast, half-precision hidden states halve the memory traffic. With pre-norm,
        # rounding errors would accumulate over the layers.
        if self.config.norm == "post":
            x = x.to(product_dtype(x))
        x = dropouts.residual.drop(x)
        rotation = self.positions.rotation(own.positions, own.longest, embedding.weight)
        recompute = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        for layer in self.layers:
            call = partial(layer, causal=self.causal, rotation=rotation)
            inputs = (x, own, dropouts, memory, other)
            x = checkpoint(call, *inputs, use_reentrant=False) if recompute else call(*inputs)
        return self.norm(x)

    def step(
        self,
        embedding: nn.Embedding,
        tokens: Tensor,
        state: DecoderState,
        *,
        need_weights: bool = False,
    ) -> tuple[Tensor, list[Tensor]]:
        """Feed the newest tokens of a search, (B, Q), to a causal stack.

        Q is W or, with a beam of one and in the first step, any number. Returns hidden states,
        (B, Q, D), and, if needed, each layer's weights of the cross-attention, (B, H, Q, S).
        """
        state.advance(tokens.shape[1] // state.beam)
        positions, end = state.positions, int(state.lengths.max())
        x = self.embed(embedding, tokens, positions, end)
        rotation = self.positions.rotation(positions, end, embedding.weight)
        weights = []
        for number, layer in enumerate(self.each_layer()):
            x, attention = layer.step(x, state, number, rotation, need_weights=need_weights)
            if attention is not None:
                weights.append(attention)
        return self.norm(x), weights
