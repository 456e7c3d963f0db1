"""Multi-head attention (Vaswani et al. 2017, section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq.model.cache import DecoderState, attend_cached, attention_weights
from seq2seq.model.packed_attention import PackedAttention
from seq2seq.model.positions import Rotate, Rotation, rotate_


class ConcatenatedLinear(nn.Linear):
    """Linear layers of equal shape: weights, (parts * out, in), and outputs are concatenated.

    Initialisation and Muon treat each part as a separate matrix: see `num_matrices`.
    """

    def __init__(self, in_features: int, out_features: int, parts: int) -> None:
        """out_features: outputs of each part."""
        super().__init__(in_features, parts * out_features)
        self.parts = parts


class MultiHeadAttention(nn.Module):
    """Attention with H heads of width K = D/H.

    In self-attention queries, keys and values come from the same tokens; in cross-attention the
    queries come from the decoder, the keys and values from the encoder's output (the memory).
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(dim, dim)
        self.key_value = ConcatenatedLinear(dim, dim, parts=2)
        self.output = nn.Linear(dim, dim)
        self.fused_qkv: nn.Module | None = None
        """For inference: one linear layer for the queries, keys and values of self-attention."""

    def forward(
        self,
        x: Tensor,
        attend: PackedAttention,
        memory: Tensor | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """Map packed tokens, (N, D) to (N, D). Arguments as in `project`."""
        return self.output(attend(*self.project(x, memory, rotation)))

    def project(
        self, x: Tensor, memory: Tensor | None = None, rotation: Rotation | None = None
    ) -> list[Tensor]:
        """Project packed tokens, (N, D), to queries, keys and values, (N, 3, H, K).

        With a memory, (M, D), to queries, (N, 1, H, K), and the memory to keys and values,
        (M, 2, H, K). rotation: sines and cosines, (N, K/2), without a memory.
        """
        projected = [self._fused(x)] if memory is None else [self.query(x), self.key_value(memory)]
        if rotation:
            projected = [Rotate.apply(*projected, 2 * self.num_heads, *rotation)]
        width = x.shape[1] // self.num_heads
        return [y.unflatten(1, (-1, self.num_heads, width)) for y in projected]

    def _fused(self, x: Tensor) -> Tensor:
        """Project (..., D) to queries, keys and values in one product, (..., 3D)."""
        return self.fused_qkv(x) if self.fused_qkv else F.linear(x, *self.fused_weights())

    def fused_weights(self) -> tuple[Tensor, Tensor]:
        """Return the fused weight and bias of queries, keys and values, (3D, D) and (3D,)."""
        query, key_value = self.query, self.key_value
        weight = torch.cat([query.weight, key_value.weight])
        return weight, torch.cat([query.bias, key_value.bias])

    def step_self(
        self, x: Tensor, state: DecoderState, layer: int, rotation: Rotation | None
    ) -> Tensor:
        """Attend from new tokens, (R, T, D), to earlier tokens and to themselves.

        T must be 1 after the first step. layer: index in the stack. rotation: sines and cosines,
        (T, K/2).
        """
        projected = self._fused(x)
        if rotation:
            rotate_(projected, 2 * self.num_heads, *rotation)
        queries, new = projected.split((x.shape[2], 2 * x.shape[2]), dim=-1)
        cached = state.append(layer, new)
        causal = x.shape[1] > 1
        return self.output(attend_cached(queries, cached, None, self.num_heads, causal=causal))

    def step_cross(self, x: Tensor, state: DecoderState, layer: int) -> Tensor:
        """Attend from new tokens, (R, T, D), to the encoded sources."""
        cached = state.cross_key_values[layer]
        queries = self.query(x).view(len(cached), -1, x.shape[2])  # (B, W*T, D)
        attended = attend_cached(queries, cached, state.mask, self.num_heads)
        if layer == state.alignment_layer:
            state.cross_attention = attention_weights(queries, cached, state.mask, self.num_heads)
        return self.output(attended.view(x.shape))
