"""Multi-head attention (Vaswani et al. 2017, section 3.2)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from seq2seq.data.packing import Packed
from seq2seq.model.cache import AttentionCache
from seq2seq.model.dropout import Dropout
from seq2seq.model.flash import Kernel
from seq2seq.model.positions import Rotation, rotate_, rotate_heads


class Windows:
    """Convert between the packed tokens of one side and the windows of H heads."""

    def __init__(self, side: Packed, num_heads: int) -> None:
        self.side, self._num_heads = side, num_heads
        self._indices: dict[int, tuple[Tensor, Tensor]] = {}

    def split(self, x: Tensor, parts: int = 1) -> tuple[Tensor, ...]:
        """Gather packed tokens, (N, parts * D), into windows: for each part (B*H, L, K)."""
        index, inverse = self._index(parts)
        rows = _Take.apply(
            x.unflatten(-1, (parts * self._num_heads, -1)).flatten(0, 1), index, inverse
        )
        return rows.view(parts, -1, self.side.sentences.shape[1], rows.shape[-1]).unbind()

    def join(self, x: Tensor) -> Tensor:
        """Gather packed tokens, (N, D), from the windows of all heads, (B*H, L, K)."""
        index, inverse = self._index(1)
        rows = _Take.apply(x.flatten(0, 1), inverse, index)
        return rows.view(len(self.side.ids), -1)

    def _index(self, parts: int) -> tuple[Tensor, Tensor]:
        """Return the head vector of each place in windows, and the place of each head vector."""
        if parts not in self._indices:
            side, heads = self.side, self._num_heads
            num_windows, length = side.tokens.shape
            number = torch.arange(parts * heads, device=side.tokens.device)
            spread = side.tokens[:, None] * (parts * heads) + number.view(parts, 1, heads, 1)
            window, column = side.places // length, side.places % length
            part, head = number // heads, number % heads
            rows = (part * num_windows + window[:, None]) * heads + head  # (N, parts * H)
            self._indices[parts] = spread.flatten(), (rows * length + column[:, None]).flatten()
        return self._indices[parts]


class Pattern:
    """The attention pattern between two sides: each token attends to its own sentence.

    For example, a causal pattern of one window with the sentences `a b c` and `d e`, and one empty
    place; x where a query (row) attends to a key (column):

               a  b  c  d  e  .
            a  x
            b  x  x
            c  x  x  x
            d           x
            e           x  x
            .                 x

    `Packed.sentences` of the window are 0 0 0 1 1 -1, `Packed.positions` of its tokens 0 1 2 0 1.
    """

    def __init__(
        self,
        queries: Windows,
        keys: Windows,
        *,
        causal: bool = False,
        flash: Kernel | None = None,
        rotation: Rotation | None = None,
    ) -> None:
        """causal: a query attends only to keys up to its own position.

        flash: variable-length kernel, which needs no windows. rotation: sines and cosines, (N, K/2)
        each; for self-attention only.
        """
        self.queries, self.keys, self.causal, self.flash = queries, keys, causal, flash
        self.rotation = rotation
        self._biases: dict[torch.dtype, Tensor] = {}

    def bias(self, dtype: torch.dtype) -> Tensor:
        """Return the bias of the scores, (B, 1, T, S): 0 where a query may attend, or <= -1e9.

        Not -inf: the row of an empty place can be masked completely; its softmax would be NaN.
        """
        if dtype not in self._biases:
            queries = self.queries.side.sentences[:, :, None]
            keys = self.keys.side.sentences[:, None, :]
            shape = torch.broadcast_shapes(queries.shape, keys.shape)
            # Without a boolean tensor in between, which is slow on a CPU.
            apart = torch.ne(queries, keys, out=queries.new_empty(shape, dtype=dtype))
            if self.causal:
                apart += torch.ones(shape[1:], dtype=dtype, device=apart.device).triu(1)
            self._biases[dtype] = apart.mul_(-1e9)[:, None]
        return self._biases[dtype]


class MultiHeadAttention(nn.Module):
    """Attention with H heads of width K = D/H.

    In self-attention queries, keys and values come from the same tokens; in cross-attention the
    queries come from the decoder, the keys and values from the encoder's output (the memory).
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.output = nn.Linear(dim, dim)

    def split_heads(self, x: Tensor) -> Tensor:
        """Reshape (R, T, D) to (R, H, T, K)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Project a memory, (B, S, D), to keys and values, each (B, H, S, K)."""
        keys, values = self.key_value(memory).chunk(2, dim=-1)
        return self.split_heads(keys), self.split_heads(values)

    def attend_self(self, x: Tensor, pattern: Pattern, dropout: Dropout) -> Tensor:
        """Attend from packed tokens, (N, D), to themselves."""
        # One product for all three, (N, 3D).
        weight = torch.cat([self.query.weight, self.key_value.weight])
        projected = F.linear(x, weight, torch.cat([self.query.bias, self.key_value.bias]))
        if pattern.rotation:
            projected = rotate_heads(projected, 2 * self.num_heads, pattern.rotation)
        if pattern.flash:
            queries, keys, values = self._packed_heads(projected, 3)
            return self._flash(queries, keys, values, pattern)
        queries, keys, values = pattern.queries.split(projected, 3)
        return self._join(queries, keys, values, pattern, dropout)

    def attend_cross(self, x: Tensor, memory: Tensor, pattern: Pattern, dropout: Dropout) -> Tensor:
        """Attend from packed tokens, (N, D), to a packed memory, (M, D)."""
        queries, keys_values = self.query(x), self.key_value(memory)
        if pattern.flash:
            [queries] = self._packed_heads(queries, 1)
            keys, values = self._packed_heads(keys_values, 2)
            return self._flash(queries, keys, values, pattern)
        [queries] = pattern.queries.split(queries)
        keys, values = pattern.keys.split(keys_values, 2)
        return self._join(queries, keys, values, pattern, dropout)

    def _join(
        self, queries: Tensor, keys: Tensor, values: Tensor, pattern: Pattern, dropout: Dropout
    ) -> Tensor:
        """Attend within windows, (B*H, L, K); return packed tokens, (N, D)."""
        attended = attend(queries, keys, values, pattern.bias(queries.dtype), dropout)
        return self.output(pattern.queries.join(attended))

    def _packed_heads(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Split (N, parts * D) into heads: for each part (N, H, K)."""
        return x.unflatten(-1, (parts, self.num_heads, -1)).unbind(1)

    def _flash(self, queries: Tensor, keys: Tensor, values: Tensor, pattern: Pattern) -> Tensor:
        """Attend within packed sentences, (N, H, K), (M, H, K); return packed tokens, (N, D)."""
        assert pattern.flash
        own, other = pattern.queries.side, pattern.keys.side
        attended = pattern.flash(
            queries, keys, values, own.offsets, other.offsets, own.longest, other.longest,
            window_size=(-1, 0) if pattern.causal else (-1, -1),
        )  # fmt: skip
        return self.output(attended.flatten(1))

    def step_self(
        self, x: Tensor, cache: AttentionCache, mask: Tensor | None, rotation: Rotation | None
    ) -> Tensor:
        """Attend from new positions, (R, T, D), to the cached ones and to themselves.

        mask: boolean, broadcastable to (R, H, T, S), True where a query may attend. rotation: (T,
        K/2) each.
        """
        queries = self.split_heads(self.query(x))
        keys, values = self.keys_values(x)
        if rotation:
            queries, keys = rotate_(queries, *rotation), rotate_(keys, *rotation)
        return self._step(queries, *cache.append(keys, values), mask)

    def step_cross(
        self,
        x: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        attention: list[Tensor] | None = None,
    ) -> Tensor:
        """Attend from new positions, (B, W*T, D), to keys and values of a memory, (B, H, S, K).

        attention: where to append the attention weights, (B, H, W*T, S), if not None.
        """
        queries = self.split_heads(self.query(x))
        if attention is not None:
            scores = (queries @ keys.transpose(2, 3)).float() / math.sqrt(queries.shape[-1])
            attention.append(scores.masked_fill(~mask, -torch.inf).softmax(dim=-1))
        return self._step(queries, keys, values, mask)

    def _step(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        return self.output(attended.transpose(1, 2).flatten(2))


class _Take(torch.autograd.Function):
    """x[index], with the gradient grad[inverse]: valid if no row with a gradient occurs twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return x.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return grad.index_select(0, inverse), None, None


class _Attend(torch.autograd.Function):
    """Attention by plain matrix products: on a CPU and for sentences, faster than torch's own."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor, dropout: Dropout
    ) -> Tensor:
        ctx.scale = 1 / math.sqrt(queries.shape[-1])
        scores = torch.bmm(queries, keys.transpose(1, 2)).mul_(ctx.scale)
        scores.unflatten(0, (len(bias), -1)).add_(bias)
        # In fp32: torch's bf16 softmax is slow for rows that do not fill whole vectors.
        acc_dtype = torch.promote_types(scores.dtype, torch.float32)
        probs = scores.softmax(dim=-1, dtype=acc_dtype).to(scores.dtype)
        mask = dropout.mask(probs) if dropout.probability else None
        ctx.save_for_backward(queries, keys, values, probs, mask)
        return torch.bmm(probs if mask is None else probs * mask, values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, probs, mask = ctx.saved_tensors
        dropped = probs if mask is None else probs * mask
        grad_values = torch.bmm(dropped.transpose(1, 2), grad)
        grad_probs = torch.bmm(grad, values.transpose(1, 2))
        if mask is not None:
            grad_probs.mul_(mask)
        grad_scores = torch._softmax_backward_data(grad_probs, probs, -1, probs.dtype)
        grad_scores.mul_(ctx.scale)
        grad_keys = torch.bmm(grad_scores.transpose(1, 2), queries)
        return torch.bmm(grad_scores, keys), grad_keys, grad_values, None, None


def attend(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor, dropout: Dropout) -> Tensor:
    """softmax(Q K^T / sqrt(D/H) + bias) V (equation 1) for each head of each window: (B*H, T, K).

    queries: (B*H, T, K); keys, values: (B*H, S, K); bias: (B, 1, T, S), of the same data type.
    dropout: applied to the attention weights.
    """
    if queries.device.type == "cpu":
        return _Attend.apply(queries, keys, values, bias, dropout)
    queries, keys, values = (x.unflatten(0, (len(bias), -1)) for x in (queries, keys, values))
    attended = F.scaled_dot_product_attention(
        queries, keys, values, attn_mask=bias, dropout_p=dropout.probability
    )
    return attended.flatten(0, 1)
