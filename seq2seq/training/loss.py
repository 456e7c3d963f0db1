"""Label-smoothed cross-entropy that never holds all the logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from seq2seq.data.batching import Batch
from seq2seq.model.transformer import Transformer

CHUNK_ROWS = 128
"""Rows of logits that exist at once."""


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Goes through the rows in chunks and computes the gradients on the way forward."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        dtype = hidden.dtype
        if torch.is_autocast_enabled(hidden.device.type):
            dtype = torch.get_autocast_dtype(hidden.device.type)
        rows, matrix = hidden.to(dtype), weight.to(dtype)
        vocab_size = weight.shape[0]
        wants_gradient = ctx.needs_input_grad[0]
        # Sums of log-probabilities lose digits in half precision, and gain none beyond double.
        exact = torch.promote_types(dtype, torch.float32)
        loss = torch.zeros((), dtype=exact, device=hidden.device)
        likelihood = torch.zeros_like(loss)
        grad_hidden = torch.empty_like(hidden) if wants_gradient else None
        grad_weight = torch.zeros_like(weight) if wants_gradient else None
        for start in range(0, len(rows), CHUNK_ROWS):
            chunk = rows[start : start + CHUNK_ROWS]
            target = targets[start : start + CHUNK_ROWS, None]
            logits = chunk @ matrix.t()  # (rows, V)
            probs = logits.softmax(dim=-1, dtype=exact)
            # log(sum(exp(logits))), from the most probable token, whose log cannot underflow
            normaliser = logits.amax(dim=-1).to(exact) - probs.amax(dim=-1).log()
            nll = normaliser - logits.gather(-1, target)[:, 0].to(exact)
            uniform = normaliser - logits.mean(dim=-1, dtype=exact)
            likelihood += nll.sum()
            loss += (1 - smoothing) * nll.sum() + smoothing * uniform.sum()
            if grad_hidden is not None and grad_weight is not None:
                # d loss / d logits = probs - smoothed targets
                probs -= smoothing / vocab_size
                probs.scatter_add_(-1, target, probs.new_full(target.shape, smoothing - 1))
                grad_logits = probs.to(dtype)
                grad_hidden[start : start + CHUNK_ROWS] = grad_logits @ matrix
                grad_weight += grad_logits.t() @ chunk
        if grad_hidden is not None:
            ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.mark_non_differentiable(likelihood)
        return loss, likelihood

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grad_loss, grad_weight * grad_loss, None, None


def smoothed_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Return the label-smoothed loss and the negative log-likelihood, both sums, in nats.

    hidden: (N, D), real tokens only; weight: (V, D), the output table; targets: (N,). The target
    distribution gives 1 - smoothing to the true token and spreads smoothing over all V (Szegedy et
    al. 2016, section 7). The likelihood carries no gradient.
    """
    loss, likelihood = _SmoothedCrossEntropy.apply(hidden, weight, targets, smoothing)
    return loss, likelihood


class TranslationLoss(nn.Module):
    """The model with its loss: what training calls, and what is wrapped for several processes."""

    def __init__(self, model: Transformer, smoothing: float) -> None:
        super().__init__()
        self.model = model
        self.smoothing = smoothing

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the batch's summed smoothed loss and summed negative log-likelihood."""
        hidden = self.model(batch.source, batch.source_mask, batch.target_input)
        return smoothed_cross_entropy(
            hidden.flatten(0, 1)[batch.target_places],
            self.model.output.weight,
            batch.target_output.flatten()[batch.target_places],
            self.smoothing,
        )
