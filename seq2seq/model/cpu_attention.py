"""Attention within packed sentences on a CPU, faster than torch's kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from seq2seq.data.packing import Packed
from seq2seq.model.dropout import Dropout
from seq2seq.model.positions import Heads
from seq2seq.model.rows import Rows, rows_of


class _Attend(torch.autograd.Function):
    """Attention within rows, with its gradient."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, rows: Rows, dropout: Dropout
    ) -> Tensor:
        ctx.scale, ctx.rows, ctx.num_heads = queries.shape[2] ** -0.5, rows, queries.shape[1]
        # Scaled before the product: it could overflow fp16.
        queries = rows.queries.split(queries).mul_(ctx.scale)
        keys, values = rows.keys.split(keys), rows.keys.split(values)
        scores = torch.bmm(queries, keys.transpose(1, 2))
        scores.unflatten(0, (-1, ctx.num_heads)).add_(rows.bias(scores.dtype))
        # In fp32: torch's bf16 softmax is slow unless rows are a multiple of the vector length.
        acc_dtype = torch.promote_types(scores.dtype, torch.float32)
        probs = scores.softmax(dim=-1, dtype=acc_dtype).to(scores.dtype)
        mask = dropout.mask(probs) if dropout.probability else None
        ctx.save_for_backward(queries, keys, values, probs, mask)
        attended = torch.bmm(probs if mask is None else probs * mask, values)
        return rows.queries.join(attended, ctx.num_heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, probs, mask = ctx.saved_tensors
        query_rows, key_rows, num_heads = ctx.rows.queries, ctx.rows.keys, ctx.num_heads
        grad = query_rows.split(grad)
        dropped = probs if mask is None else probs * mask
        grad_values = torch.bmm(dropped.transpose(1, 2), grad)
        grad_probs = torch.bmm(grad, values.transpose(1, 2))
        if mask is not None:
            grad_probs.mul_(mask)
        grad_scores = torch._softmax_backward_data(grad_probs, probs, -1, probs.dtype)
        grad_queries = torch.bmm(grad_scores, keys).mul_(ctx.scale)
        grad_keys = torch.bmm(grad_scores.transpose(1, 2), queries)
        grads = [key_rows.join(grad, num_heads) for grad in (grad_keys, grad_values)]
        return query_rows.join(grad_queries, num_heads), *grads, None, None


def attend(
    heads: Heads, query_tokens: Packed, key_tokens: Packed, *, causal: bool, dropout: Dropout
) -> Tensor:
    """Compute `attention.attend` on a CPU."""
    return _Attend.apply(*heads, rows_of(query_tokens, key_tokens, causal), dropout)
