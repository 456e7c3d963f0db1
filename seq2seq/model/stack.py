"""A stack of layers: an encoder or a decoder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from seq2seq.config import ModelConfig
from seq2seq.data.packing import Packed
from seq2seq.machine.precision import product_dtype
from seq2seq.model.cache import DecoderState, Step
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
        states: Sequence[DecoderState],
        *,
        need_weights: bool = False,
    ) -> tuple[Tensor, list[list[Tensor]]]:
        """Feed the newest tokens of searches, (B, Q), to a causal stack.

        The sentences of the states are consecutive; Q is W or, with a beam of one and a single
        state, any number. Returns hidden states, (B, Q, D), and, if needed, for each state the
        weights of the cross-attention of each layer, (B, H, Q, S).
        """
        step = Step(tokens, states, need_weights=need_weights)
        x = self.embed(embedding, tokens, step.positions, step.end)
        rotation = self.positions.rotation(step.positions, step.end, embedding.weight)
        cross, weights = bool(states[0].memories), []
        for number, layer in enumerate(self.each_layer()):
            x, attention = layer.step(x, step, number, rotation, cross=cross)
            weights.append(attention)
        return self.norm(x), [list(own) for own in zip(*weights, strict=True)]
