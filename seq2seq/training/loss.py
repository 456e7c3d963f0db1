"""Label-smoothed cross-entropy that never holds all the logits."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from seq2seq.data.packing import Batch
from seq2seq.model.transformer import Transformer

CHUNK_ROWS = 512
"""Rows of logits that exist at once."""


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Goes through the rows in chunks and computes the gradients on the way forward."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, count: int, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        dtype = hidden.dtype
        if torch.is_autocast_enabled(hidden.device.type):
            dtype = torch.get_autocast_dtype(hidden.device.type)
        # Sums of log-probabilities lose digits in half precision, and gain none beyond double.
        exact = torch.promote_types(dtype, torch.float32)
        rows, matrix = hidden.to(dtype), weight.to(dtype)
        mean = weight.mean(dim=0, dtype=exact)
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros_like(weight)
        nll = torch.empty(count, dtype=exact, device=hidden.device)
        target_logits = torch.empty_like(nll)
        wants_gradient = ctx.needs_input_grad[0]
        for start in range(0, count, CHUNK_ROWS):
            # With the filler behind the real rows, so that shapes recur.
            chunk = slice(start, start + CHUNK_ROWS)
            real = slice(start, min(start + CHUNK_ROWS, count))
            target = targets[real, None]
            logits = rows[chunk] @ matrix.t()  # (rows, V)
            probs = logits.softmax(dim=-1)
            target_logits[real] = logits[: len(target)].gather(-1, target)[:, 0].to(exact)
            nll[real] = probs[: len(target)].gather(-1, target)[:, 0].to(exact)
            if wants_gradient:
                probs[len(target) :] = 0
                grad_hidden[chunk] = probs @ matrix
                grad_weight += probs.t() @ rows[chunk]
        nll = nll.clamp_(min=torch.finfo(exact).tiny).log_().neg_()
        # The mean of -log p over the vocabulary: the normaliser, less the mean of the logits; never
        # below that of a uniform distribution, as it would be where `nll` is cut off.
        rest = nll + target_logits - rows[:count].to(exact) @ mean
        rest = rest.clamp_(min=math.log(len(weight)))
        likelihood = nll.sum()
        loss = (1 - smoothing) * likelihood + smoothing * rest.sum()
        if wants_gradient:
            # d loss / d logits = probs - smoothed targets; the second part without making it:
            real_rows = hidden[:count]
            grad_hidden[:count] -= smoothing * mean + (1 - smoothing) * weight[targets[:count]]
            grad_weight.index_add_(0, targets[:count], real_rows, alpha=smoothing - 1)
            grad_weight -= smoothing / len(weight) * real_rows.sum(dim=0)
            ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.mark_non_differentiable(likelihood)
        return loss, likelihood

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grad_loss, grad_weight * grad_loss, None, None, None


def smoothed_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, count: int, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Return the label-smoothed loss and the negative log-likelihood, both sums, in nats.

    hidden: (N, D), of which the first `count` rows are real; weight: (V, D), the output table;
    targets: (N,). The target distribution gives 1 - smoothing to the true token and spreads
    smoothing over all V (Szegedy et al. 2016, section 7). The likelihood carries no gradient. A
    probability below the smallest number of its precision counts as that, about e^-87.
    """
    loss, likelihood = _SmoothedCrossEntropy.apply(hidden, weight, targets, count, smoothing)
    return loss, likelihood


class TranslationLoss(nn.Module):
    """The model with its loss: what training calls, and what is wrapped for several processes."""

    def __init__(self, model: Transformer, smoothing: float) -> None:
        super().__init__()
        self.model = model
        self.smoothing = smoothing

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the batch's summed smoothed loss and summed negative log-likelihood."""
        return smoothed_cross_entropy(
            self.model(batch.source, batch.target),
            self.model.output.weight,
            batch.labels,
            batch.num_target_tokens,
            self.smoothing,
        )
