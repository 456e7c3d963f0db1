"""Transformer layers and stacks (Vaswani et al. 2017, sections 3.1 and 3.3), with variants."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from seq2seq.config import ModelConfig
from seq2seq.data.batching import Packed
from seq2seq.machine.precision import no_autocast, product_dtype
from seq2seq.model.attention import ConcatenatedLinear, MultiHeadAttention
from seq2seq.model.cache import DecoderState
from seq2seq.model.dropout import NO_DROPOUT, Dropout, Dropouts
from seq2seq.model.packed_attention import PackedAttention
from seq2seq.model.positions import Positions, Rotation


class FeedForward(nn.Module):
    """Position-wise feed-forward network: D to F, activation, F to D.

    relu: max(0, x W1 + b1) W2 + b2 (equation 2); gelu: x * Phi(x) instead of the maximum
    (Hendrycks and Gimpel 2016); silu: x * sigmoid(x) (Elfwing et al. 2018); swiglu: (SiLU(x W + b)
    * (x V + c)) W2 + b2 (Shazeer 2020, equation 6, with biases). For swiglu, `up` concatenates W
    and V, and F is 2/3 of `ffn_dim`, rounded to a multiple of 8, so that the three matrices have
    about as many parameters as the usual two.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = config.activation
        gated = config.activation == "swiglu"
        width = max(8, round(config.ffn_dim * 2 / 3 / 8) * 8) if gated else config.ffn_dim
        self.up = ConcatenatedLinear(config.dim, width, parts=2 if gated else 1)
        self.down = nn.Linear(width, config.dim)

    def forward(self, x: Tensor, dropout: Dropout = NO_DROPOUT.activation) -> Tensor:
        """Map each position independently: (..., D) to (..., D)."""
        y = self.up(x)
        if self.activation == "swiglu":
            gate, value = y.chunk(2, dim=-1)
            y = F.silu(gate) * value
        else:
            y = getattr(F, self.activation)(y)
        return self.down(dropout.drop(y))


class LayerNorm(nn.LayerNorm):
    """Layer normalisation in the data type of its input. On a GPU, autocast would choose fp32."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension of x, (..., D)."""
        if x.device.type == "cpu":  # accepts weights in fp32 for any input
            return super().forward(x)
        with no_autocast(x):
            weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
            return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class Layer(nn.Module):
    """Transformer layer: self-attention, optional cross-attention and feed-forward network.

    Each sublayer has a residual connection with dropout and layer normalisation. post:
    LayerNorm(x + Dropout(Sublayer(x))), as in the paper; pre: x + Dropout(Sublayer(LayerNorm(x))).
    """

    def __init__(self, config: ModelConfig, *, cross: bool) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.self_attention = MultiHeadAttention(config.dim, config.num_heads)
        self.self_attention_norm = LayerNorm(config.dim)
        if cross:
            self.cross_attention = MultiHeadAttention(config.dim, config.num_heads)
            self.cross_attention_norm = LayerNorm(config.dim)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = LayerNorm(config.dim)

    def _add(
        self,
        x: Tensor,
        sublayer: Callable[[Tensor], Tensor],
        norm: LayerNorm,
        dropout: Dropout = NO_DROPOUT.residual,
    ) -> Tensor:
        """Add a sublayer's output to x, (..., D)."""
        if self.pre:
            return dropout.add(x, sublayer(norm(x)))
        return norm(dropout.add(x, sublayer(x)))

    def forward(
        self,
        x: Tensor,
        attend: PackedAttention,
        dropouts: Dropouts,
        memory: Tensor | None = None,
        attend_memory: PackedAttention | None = None,
        *,
        rotation: Rotation | None,
    ) -> Tensor:
        """Map the hidden states of packed tokens, (N, D) to (N, D).

        memory: encoder output, (M, D). rotation: sines and cosines, (N, K/2).
        """
        dropout = dropouts.residual
        attention = partial(self.self_attention, attend=attend, rotation=rotation)
        x = self._add(x, attention, self.self_attention_norm, dropout)
        if attend_memory:
            attention = partial(self.cross_attention, attend=attend_memory, memory=memory)
            x = self._add(x, attention, self.cross_attention_norm, dropout)
        feed_forward = partial(self.feed_forward, dropout=dropouts.activation)
        return self._add(x, feed_forward, self.feed_forward_norm, dropout)

    def step(self, x: Tensor, state: DecoderState, index: int, rotation: Rotation | None) -> Tensor:
        """Map the hidden states of T new tokens for each of R hypotheses, (R, T, D) to (R, T, D).

        index: index of this layer in the stack. rotation: sines and cosines, (T, K/2).
        """
        step = partial(self.self_attention.step_self, state=state, layer=index, rotation=rotation)
        x = self._add(x, step, self.self_attention_norm)
        if state.cross_key_values:
            step = partial(self.cross_attention.step_cross, state=state, layer=index)
            x = self._add(x, step, self.cross_attention_norm)
        return self._add(x, self.feed_forward, self.feed_forward_norm)


class Stack(nn.Module):
    """Positional encoding, layers and, for pre-norm, a final LayerNorm."""

    def __init__(
        self, config: ModelConfig, depth: int, *, causal: bool = False, cross: bool = False
    ) -> None:
        """causal: mask later positions. cross: add cross-attention to each layer."""
        super().__init__()
        self.config, self.causal = config, causal
        self.positions = Positions(config)
        layers = nn.ModuleList(Layer(config, cross=cross) for _ in range(depth))
        self.layers = cast(Sequence[Layer], layers)  # for mypy
        self.norm = LayerNorm(config.dim) if config.norm == "pre" else nn.Identity()
        self.gradient_checkpointing = False
        """Whether training stores only the input of each layer and recomputes the rest."""

    def embed(self, embedding: nn.Embedding, tokens: Tensor, positions: Tensor, end: int) -> Tensor:
        """Embed tokens, (...) to (..., D). end: exclusive upper bound of the positions."""
        x = embedding(tokens) * math.sqrt(self.config.dim)
        return self.positions.add(x, positions, end)

    def forward(
        self,
        embedding: nn.Embedding,
        tokens: Packed,
        dropouts: Dropouts,
        memory: Tensor | None = None,
        source: Packed | None = None,
    ) -> Tensor:
        """Map packed tokens to hidden states, (N, D).

        memory: encoder output, (M, D), of the tokens `source`.
        """
        x = self.embed(embedding, tokens.ids, tokens.positions, tokens.longest)
        # Under autocast, half-precision hidden states halve the memory traffic. With pre-norm,
        # rounding errors would accumulate over the layers.
        if self.config.norm == "post":
            x = x.to(product_dtype(x))
        x = dropouts.residual.drop(x)
        rotation = self.positions.rotation(tokens.positions, tokens.longest, embedding.weight)
        attend = PackedAttention(tokens, tokens, dropouts.attention, causal=self.causal)
        attend_memory = None
        if source is not None:
            attend_memory = PackedAttention(tokens, source, dropouts.attention)
        recompute = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        for layer in self.layers:
            call = partial(layer, rotation=rotation)
            inputs = (x, attend, dropouts, memory, attend_memory)
            x = checkpoint(call, *inputs, use_reentrant=False) if recompute else call(*inputs)
        return self.norm(x)

    def step(self, embedding: nn.Embedding, tokens: Tensor, state: DecoderState) -> Tensor:
        """Feed T new tokens of each of R hypotheses, (R, T); return hidden states, (R, T, D).

        The stack must be causal. T is 1 after the first step.
        """
        end = state.length + tokens.shape[1]
        positions = torch.arange(state.length, end, device=tokens.device)
        x = self.embed(embedding, tokens, positions, end)
        rotation = self.positions.rotation(positions, end, embedding.weight)
        for index, layer in enumerate(self.layers):
            x = layer.step(x, state, index, rotation)
        state.length = end
        return self.norm(x)
