"""Label-smoothed cross-entropy without materialising all logits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from seq2seq.data.packing import Batch
from seq2seq.machine.precision import product_dtype
from seq2seq.model.transformer import Network

CHUNK_ROWS = 2048
"""Rows of logits in memory at once."""


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Processes the rows in chunks and computes the gradients in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, targets: Tensor, num_labels: int, smoothing: float,
        kl_weight: float, *passes: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        hidden = passes[0]
        dtype = product_dtype(hidden)
        # Sums of log-probabilities need at least single precision.
        acc_dtype = torch.promote_types(dtype, torch.float32)
        rows, matrix = [each.to(dtype) for each in passes], weight.to(dtype)
        mean = weight.mean(dim=0, dtype=acc_dtype)
        nll = torch.empty(len(passes), num_labels, dtype=acc_dtype, device=hidden.device)
        target_logits = torch.empty_like(nll)
        divergence = torch.zeros((), dtype=acc_dtype, device=hidden.device)
        wants_gradient = any(ctx.needs_input_grad)
        if wants_gradient:
            grad_passes = [torch.zeros_like(each, dtype=acc_dtype) for each in passes]
            grad_weight = torch.zeros_like(weight)
        for start in range(0, num_labels, CHUNK_ROWS):
            # Including the padding behind the real rows, so that fewer shapes occur.
            chunk = slice(start, start + CHUNK_ROWS)
            real = slice(start, min(start + CHUNK_ROWS, num_labels))
            target = targets[real, None]
            logits = [each[chunk] @ matrix.t() for each in rows]  # (rows, V)
            # In fp16 probabilities below 6e-8 would be 0.
            exact = acc_dtype if dtype == torch.float16 else None
            grads = probs = [each.softmax(dim=-1, dtype=exact) for each in logits]
            for i in range(len(passes)):
                target_logits[i, real] = (
                    logits[i][: len(target)].gather(-1, target)[:, 0].to(acc_dtype)
                )
                nll[i, real] = probs[i][: len(target)].gather(-1, target)[:, 0].to(acc_dtype)
            if kl_weight:
                part, grads = _divergence(logits, probs, kl_weight, len(target))
                divergence += part
            if wants_gradient:
                for i, grad in enumerate(grads):
                    grad[len(target) :] = 0
                    grad = grad.to(dtype)
                    grad_passes[i][chunk] = grad @ matrix
                    if exact:  # a frequent word's sum over the rows could exceed fp16
                        eighth = (grad / 8).t() @ rows[i][chunk]
                        grad_weight.add_(eighth.to(acc_dtype), alpha=8)
                    else:
                        grad_weight += grad.t() @ rows[i][chunk]
        nll = nll.clamp_(min=torch.finfo(acc_dtype).tiny).log_().neg_()
        # The mean of -log p over the vocabulary is logsumexp(logits) - mean(logits), and logsumexp
        # is nll + target_logit. It is at least log(V), which the clamped nll would violate.
        # No matrix product: autocast would round it.
        mean_logits = torch.stack(
            [(each[:num_labels].to(acc_dtype) * mean).sum(dim=-1) for each in rows]
        )
        rest = (nll + target_logits - mean_logits).clamp_(min=math.log(len(weight)))
        mean_nll = nll.sum() / len(passes)
        loss = (1 - smoothing) * mean_nll + smoothing * rest.sum() / len(passes)
        if wants_gradient:
            # d loss / d logits = probs - smoothed targets; the targets are subtracted without
            # building an (N, V) matrix.
            wanted = smoothing * mean + (1 - smoothing) * weight[targets[:num_labels]]
            for each, grad in zip(passes, grad_passes, strict=True):
                states = each[:num_labels].to(acc_dtype)
                grad[:num_labels] -= wanted
                grad_weight.index_add_(0, targets[:num_labels], states, alpha=smoothing - 1)
                grad_weight -= smoothing / len(weight) * states.sum(dim=0)
            ctx.save_for_backward(grad_weight, *grad_passes)
        ctx.mark_non_differentiable(mean_nll)
        return loss + kl_weight * divergence, mean_nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grad_weight, *grad_passes = ctx.saved_tensors
        scale = grad_loss / len(grad_passes)
        return grad_weight * scale, None, None, None, None, *(grad * scale for grad in grad_passes)


def _divergence(
    logits: Sequence[Tensor], probs: Sequence[Tensor], kl_weight: float, num_labels: int
) -> tuple[Tensor, list[Tensor]]:
    """Return the R-Drop divergence of two passes and the gradients with respect to their logits.

    The mean of KL(p, q) and KL(q, p) is sum((p - q) * (log p - log q)) / 2. Logits may replace the
    log-probabilities, since p - q sums to 0. It is summed over the first `num_labels` rows. The
    gradients are scaled by 2, the number of passes, and include that of the nll's logsumexp.
    """
    (p, q), logit_difference = probs, logits[0] - logits[1]
    difference = p - q
    acc_dtype = torch.promote_types(p.dtype, torch.float32)
    divergence = (difference * logit_difference)[:num_labels].sum(dtype=acc_dtype) / 2
    difference *= kl_weight
    grads = []
    for each, sign in ((p, 1), (q, -1)):
        centre = (each * logit_difference).sum(dim=-1, keepdim=True)
        scale = (logit_difference - centre).mul_(sign * kl_weight).add_(1)
        grads.append(scale.mul_(each).add_(difference, alpha=sign))
    return divergence, grads


def smoothed_cross_entropy(
    passes: Sequence[Tensor],
    weight: Tensor,
    targets: Tensor,
    num_labels: int,
    smoothing: float,
    kl_weight: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return the label-smoothed loss and the negative log-likelihood, both sums, in nats.

    passes: (N, D) each, hidden states of the same tokens, of which all but the first `num_labels`
    rows are padding; loss and nll are means over the passes. weight: (V, D), of the output
    projection; targets: (N,). The target distribution is 1 - smoothing for the true token plus
    smoothing spread over all V (Szegedy et al. 2016, section 7). The nll has no gradient.
    Probabilities are clamped to the smallest normal number of the precision, about e^-87.

    kl_weight: with two passes, weight of the mean of their two Kullback-Leibler divergences
    (R-Drop, Wu et al. 2021, equation 4; that loss is twice this one, with alpha = 2 * kl_weight).
    """
    if not torch.is_grad_enabled():  # needs_input_grad ignores no_grad
        weight = weight.detach()
    loss, nll = _SmoothedCrossEntropy.apply(
        weight, targets, num_labels, smoothing, kl_weight, *passes
    )
    return loss, nll


def _widened(x: Tensor, column: Tensor) -> Tensor:
    """Append a column to a matrix, (N, D), and zeros up to (N, D + 8), which keep it aligned.

    The product of hidden states with a column of ones and weights with a column of biases is that
    of a linear layer with a bias.
    """
    return torch.cat([x, column[:, None].to(x.dtype), x.new_zeros(len(x), 7)], dim=1)


class ModelLoss(nn.Module):
    """The model with its loss: the module that DistributedDataParallel wraps."""

    def __init__(self, model: Network, smoothing: float, kl_weight: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self.smoothing = smoothing
        self.kl_weight = kl_weight

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the batch's summed loss and summed negative log-likelihood."""
        kl_weight = self.kl_weight if self.training else 0.0
        passes = [self.model(*batch.inputs) for _ in range(2 if kl_weight else 1)]
        weight, bias = self.model.output.weight, self.model.output.bias
        if bias is not None:
            passes = [_widened(each, each.new_ones(len(each))) for each in passes]
            weight = _widened(weight, bias)
        return smoothed_cross_entropy(
            passes,
            weight,
            batch.labels,
            batch.num_labels,
            self.smoothing,
            kl_weight,
        )
