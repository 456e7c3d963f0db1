"""Multi-head attention (Vaswani et al. 2017, section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq.data.packing import Packed
from seq2seq.model import cpu_attention, gpu_attention
from seq2seq.model.cache import AttentionCache, Memory
from seq2seq.model.dropout import Dropout
from seq2seq.model.gpu_attention import find_kernel
from seq2seq.model.linear import ConcatenatedLinear
from seq2seq.model.positions import Rotation, rotate_, rotate_heads


@torch.compiler.disable  # sentences differ in number and length from batch to batch
def attend(
    queries: Tensor, keys: Tensor, values: Tensor, own: Packed, other: Packed, *, causal: bool,
    dropout: Dropout,
) -> Tensor:  # fmt: skip
    """softmax(Q K^T / sqrt(K)) V for each head, within each sentence (equation 1): (N, D).

    queries: (N, H, K), of the packed tokens `own`; keys, values: (M, H, K), of `other`. causal: a
    token attends only to positions up to its own. dropout: applied to the attention weights.
    """
    if queries.device.type == "cpu":
        attended = cpu_attention.attend(
            queries, keys, values, own, other, causal=causal, dropout=dropout
        )
    else:
        attended = gpu_attention.attend(
            queries, keys, values, own, other, causal=causal, dropout=dropout.probability
        )
    return attended.flatten(1)  # here, since torch.compile would not know that D never changes


def needs_rows(device: torch.device, dtype: torch.dtype, width: int, dropout: float) -> bool:
    """Return whether `attend` needs rows or windows as long as the longest sentence.

    dtype, width: of queries, keys and values of one head. dropout: of the attention weights.
    """
    return bool(device.type == "cpu" or dropout or not find_kernel(device, dtype, width))


Heads = tuple[Tensor, Tensor, Tensor]
"""Queries, (N, H, K), keys and values, (M, H, K)."""


class MultiHeadAttention(nn.Module):
    """Attention with H heads of width K = D/H: `project`, `attend`, `output`.

    In self-attention queries, keys and values come from the same tokens; in cross-attention the
    queries come from the decoder, the keys and values from the encoder's output (the memory).
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(dim, dim)
        self.key_value = ConcatenatedLinear(dim, dim, parts=2)
        self.output = nn.Linear(dim, dim)

    def project(
        self, x: Tensor, memory: Tensor | None = None, rotation: Rotation | None = None
    ) -> Heads:
        """Project packed tokens, (N, D), to queries, and a memory, (M, D), to keys and values.

        Without a memory, the tokens are their own. rotation: (N, K/2) each.
        """
        if memory is not None:
            [queries] = self._heads(self.query(x), 1)
            keys, values = self._heads(self.key_value(memory), 2)
            return queries, keys, values
        # One product for all three, (N, 3D).
        weight = torch.cat([self.query.weight, self.key_value.weight])
        projected = F.linear(x, weight, torch.cat([self.query.bias, self.key_value.bias]))
        if rotation:
            projected = rotate_heads(projected, 2 * self.num_heads, rotation)
        queries, keys, values = self._heads(projected, 3)
        return queries, keys, values

    def _heads(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Split (..., parts * D) into heads: for each part (..., H, K)."""
        return x.unflatten(-1, (parts, self.num_heads, -1)).unbind(-3)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Project a memory, (B, S, D), to keys and values, each (B, H, S, K)."""
        keys, values = self._heads(self.key_value(memory), 2)
        return keys.transpose(1, 2), values.transpose(1, 2)

    def step_self(
        self, x: Tensor, cache: AttentionCache, mask: Tensor | None, rotation: Rotation | None
    ) -> Tensor:
        """Attend from new positions, (R, T, D), to the cached ones and to themselves.

        mask: (T, S), True where a query may attend; None if everywhere. rotation: (T, K/2) each.
        """
        queries, (keys, values) = self._queries(x), self.keys_values(x)
        if rotation:
            queries, keys = rotate_(queries, *rotation), rotate_(keys, *rotation)
        keys, values = cache.append(keys, values)
        return self._output(F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask))

    def step_cross(
        self, x: Tensor, memory: Memory, *, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from new positions, (B, T, D), to a memory.

        Returns the output and, if wanted, the attention weights, (B, H, T, S).
        """
        queries, keys, mask, weights = self._queries(x), memory.keys, memory.mask, None
        if need_weights:
            scores = (queries @ keys.transpose(2, 3)).float() * queries.shape[-1] ** -0.5
            weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
        attended = F.scaled_dot_product_attention(queries, keys, memory.values, attn_mask=mask)
        return self._output(attended), weights

    def _queries(self, x: Tensor) -> Tensor:
        return self._heads(self.query(x), 1)[0].transpose(1, 2)  # (B, H, T, K)

    def _output(self, attended: Tensor) -> Tensor:
        return self.output(attended.transpose(1, 2).flatten(2))
