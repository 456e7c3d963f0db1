"""Multi-head attention (Vaswani et al. 2017, section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq.data.packing import Packed
from seq2seq.model import cpu_attention, gpu_attention
from seq2seq.model.cache import Step
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


FEW = 32
"""Number of queries up to which all attention weights are computed at once."""
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
        self.joined: nn.Module | None = None
        """For inference: one product for the queries, keys and values of self-attention."""

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
        projected = self._joined(x)
        if rotation:
            projected = rotate_heads(projected, 2 * self.num_heads, rotation)
        queries, keys, values = self._heads(projected, 3)
        return queries, keys, values

    def _joined(self, x: Tensor) -> Tensor:
        """Project (..., D) to queries, keys and values in one product, (..., 3D)."""
        if self.joined is not None:
            projected: Tensor = self.joined(x)
            return projected
        weight = torch.cat([self.query.weight, self.key_value.weight])
        return F.linear(x, weight, torch.cat([self.query.bias, self.key_value.bias]))

    def _heads(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Split (..., parts * D) into heads: for each part (..., H, K)."""
        return x.unflatten(-1, (parts, self.num_heads, -1)).unbind(-3)

    def remember(self, memory: Tensor) -> Tensor:
        """Project a memory, (B, S, D), to keys and values, (2, B, H, S, K)."""
        return self._split(self.key_value(memory), 2)

    def step_self(self, x: Tensor, step: Step, layer: int, rotation: Rotation | None) -> Tensor:
        """Attend from new positions, (B, Q, D), to those before and to themselves.

        layer: number of the layer in its stack. rotation: (B or 1, Q, K/2) each.
        """
        projected = self._joined(x)
        if rotation:
            projected = projected.to(torch.promote_types(projected.dtype, torch.float32))
            count = 2 * self.num_heads
            heads = projected.unflatten(-1, (count // 2 * 3, -1))[..., :count, :]
            rotate_(heads, *(each[..., None, :] for each in rotation))
        heads = self._split(projected, 3)
        attended = torch.empty_like(heads[0])
        for own, state, bias in step.parts:
            keys, values = state.write(layer, heads[1:, own])
            attend_cached(heads[0, own], keys, values, bias, attended[own], need_weights=False)
        return self._output(attended)

    def step_cross(self, x: Tensor, step: Step, layer: int) -> tuple[Tensor, list[Tensor]]:
        """Attend from new positions, (B, Q, D), to the sources.

        Returns the output and, if the step needs them, the weights of each part, (B, H, Q, S).
        """
        [queries] = self._split(self.query(x), 1)
        attended, weights = torch.empty_like(queries), list[Tensor]()
        for own, state, _ in step.parts:
            keys, values = state.read_source(layer)
            found = attend_cached(
                queries[own], keys, values, state.source_bias, attended[own],
                need_weights=step.need_weights,
            )  # fmt: skip
            if found is not None and step.need_weights:
                weights.append(found)
        return self._output(attended), weights

    def _split(self, x: Tensor, parts: int) -> Tensor:
        """Split (B, Q, parts * D) into heads, (parts, B, H, Q, K)."""
        heads = x.unflatten(-1, (parts, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        dtype = x.dtype
        if x.device.type == "cpu":  # in half precision, products of small matrices are slow there
            dtype = torch.promote_types(dtype, torch.float32)
        split = torch.empty(heads.shape, dtype=dtype, device=x.device)
        return split.copy_(heads)

    def _output(self, attended: Tensor) -> Tensor:
        """Join heads, (B, H, Q, K), and project them, (B, Q, D)."""
        return self.output(attended.transpose(1, 2).flatten(2))


def attend_cached(
    queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, attended: Tensor, *,
    need_weights: bool,
) -> Tensor | None:  # fmt: skip
    """Attend from a few queries of each head, (B, H, Q, K), to keys and values, (B*H, S, K).

    bias: (B or 1, Q or 1, S), added to the scores of all heads. Fills `attended`, (B, H, Q, K), and
    returns the weights, (B, H, Q, S), if they are needed.
    """
    if not need_weights and (queries.shape[2] > FEW or len(queries) == 1):
        keys, values = (each.unflatten(0, queries.shape[:2]) for each in (keys, values))
        mask = None if bias is None else bias[:, None].to(queries.dtype)
        attended.copy_(F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask))
        return None
    # For few queries of many sentences torch's fused kernel takes three times as long as products.
    queries = queries * queries.shape[-1] ** -0.5  # before the product, which might overflow fp16
    scores = torch.bmm(queries.flatten(0, 1), keys.transpose(1, 2)).unflatten(0, queries.shape[:2])
    scores = scores.float() if bias is None else scores + bias[:, None]
    weights = scores.softmax(dim=-1)
    torch.bmm(weights.flatten(0, 1).to(values.dtype), values, out=attended.flatten(0, 1))
    return weights
