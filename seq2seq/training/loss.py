"""Label-smoothed cross-entropy that keeps only a chunk of the logits in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from seq2seq.data.packing import Batch
from seq2seq.machine.precision import no_autocast, product_dtype
from seq2seq.model.transformer import Network

CHUNK_ROWS = 2048
"""Number of tokens whose logits are in memory at once."""


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Processes rows in chunks, and computes gradients in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        targets: Tensor,
        num_targets: int,
        smoothing: float,
        kl_weight: float,
        dtype: torch.dtype,
        *passes: Tensor,
    ) -> tuple[Tensor, Tensor]:
        hidden = passes[0]
        # Log-probabilities are summed in fp32 or higher.
        acc_dtype = torch.promote_types(dtype, torch.float32)
        rows, matrix = [x.to(dtype) for x in passes], weight.to(dtype)
        mean_weight = weight.mean(dim=0, dtype=acc_dtype)
        nll = torch.empty(len(passes), len(targets), dtype=acc_dtype, device=hidden.device)
        target_logits = torch.empty_like(nll)
        divergence = torch.zeros((), dtype=acc_dtype, device=hidden.device)
        wants_gradient = any(ctx.needs_input_grad)
        if wants_gradient:
            grad_passes = [torch.zeros_like(x, dtype=acc_dtype) for x in passes]
            grad_weight = torch.zeros_like(weight)
        # In fp16 the softmax is in fp32: probabilities below 6e-8 would be 0. `grad_scale` keeps
        # small gradients from underflow. `state_scale` keeps the product that is added to
        # `grad_weight`, a sum over the tokens of a chunk, from overflow.
        is_fp16 = dtype == torch.float16
        grad_scale, state_scale = (16, 1 / 128) if is_fp16 else (1, 1)
        states = [x * state_scale for x in rows] if is_fp16 else rows
        for start in range(0, num_targets, CHUNK_ROWS):
            # Padding after the real rows is included, so that fewer shapes occur.
            chunk = slice(start, start + CHUNK_ROWS)
            num_real = min(CHUNK_ROWS, num_targets - start)
            target = torch.arange(len(targets[chunk]), device=hidden.device), targets[chunk]
            logits = [x[chunk] @ matrix.t() for x in rows]  # (rows, V)
            probs = [x.softmax(dim=-1, dtype=acc_dtype if is_fp16 else None) for x in logits]
            others = []
            for i, pass_probs in enumerate(probs):
                target_logits[i, chunk] = logits[i][target].to(acc_dtype)
                nll[i, chunk], other = _split_target(pass_probs, target)
                others.append(other)
            # d loss / d logits = probs - (1 - smoothing) * one_hot - smoothing / V. At the target,
            # the first two terms are `smoothing - other`. The last term follows after the loop.
            target_grads = [smoothing - other for other in others]
            if kl_weight:
                part, grads, grads_of_targets = _divergence(logits, probs, others, target, num_real)
                divergence += part
                for i in range(len(passes)):
                    probs[i].add_(grads[i], alpha=kl_weight)
                    target_grads[i].add_(grads_of_targets[i], alpha=kl_weight)
            if not wants_gradient:
                continue
            for i, grad in enumerate(probs):
                grad[target] = target_grads[i].to(grad.dtype)
                grad[num_real:] = 0
                if is_fp16:
                    grad = grad.mul_(grad_scale).to(dtype)
                grad_passes[i][chunk].add_(grad @ matrix, alpha=1 / grad_scale)
                grad_weight.add_(grad.t() @ states[i][chunk], alpha=1 / (grad_scale * state_scale))
        nll, target_logits = nll[:, :num_targets], target_logits[:, :num_targets]
        # Not a matrix product, which may use TF32 on a GPU.
        mean_logits = torch.stack(
            [(x[:num_targets].to(acc_dtype) * mean_weight).sum(dim=-1) for x in rows]
        )
        # The mean of -log p over the vocabulary is logsumexp(logits) - mean(logits), and logsumexp
        # is nll + target_logit. It is at least log(V), but the clamped nll may make it smaller.
        smooth_loss = (nll + target_logits - mean_logits).clamp_(min=math.log(len(weight)))
        nll_sum = nll.sum() / len(passes)
        loss = (1 - smoothing) * nll_sum + smoothing * smooth_loss.sum() / len(passes)
        if wants_gradient:
            # Smoothing of the targets, without a pass over (N, V).
            for x, grad in zip(passes, grad_passes, strict=True):
                grad[:num_targets] -= smoothing * mean_weight
                grad_weight -= smoothing / len(weight) * x[:num_targets].sum(0, dtype=acc_dtype)
            ctx.save_for_backward(grad_weight, *grad_passes)
        ctx.mark_non_differentiable(nll_sum)
        return loss + kl_weight * divergence, nll_sum

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grad_weight, *grad_passes = ctx.saved_tensors
        scale = grad_loss / len(grad_passes)
        return grad_weight * scale, *[None] * 5, *(grad * scale for grad in grad_passes)


def _split_target(probs: Tensor, target: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the nll of the targets and the sum of all other probabilities, both (rows,).

    Sets the probabilities of the targets in `probs`, (rows, V), to 0 in place. target: rows and
    columns of the targets.
    A probability close to 1, rounded to bf16, loses its difference from 1. The sum of the other
    probabilities keeps it.
    """
    acc_dtype = torch.promote_types(probs.dtype, torch.float32)
    prob = probs[target].to(acc_dtype)
    # scatter_ is slow on a CPU. A Python number would be copied to a GPU, with a synchronisation.
    probs[target] = probs.new_zeros(())
    # On a CPU, sum(dtype=acc_dtype) would convert the whole matrix first.
    others = probs.sum(dim=-1).to(acc_dtype)
    unlikely = prob.clamp(min=torch.finfo(acc_dtype).tiny).log()
    return torch.where(prob > 0.5, torch.log1p(-others), unlikely).neg_(), others


def _divergence(
    logits: Sequence[Tensor],
    probs: Sequence[Tensor],
    others: Sequence[Tensor],
    target: tuple[Tensor, Tensor],
    num_real: int,
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Return the R-Drop divergence of two passes and its gradients with respect to their logits.

    The mean of KL(p, q) and KL(q, p) is sum((p - q) * (log p - log q)) / 2. Since p - q sums to 0,
    the difference of the logits, shifted by any constant, can replace log p - log q. It is shifted
    to 0 at the target, so that only the other, small probabilities matter.

    probs: 0 at the targets. others: the sums of `probs`. Both come from `_split_target`.

    Returns the sum over the first `num_real` rows, gradients, (rows, V), and the gradients of the
    targets, (rows,). Gradients are multiplied by 2, the number of passes.
    """
    (p, q), (p_others, q_others) = probs, others
    logit_difference = logits[0] - logits[1]
    logit_difference -= logit_difference[target][:, None]
    difference = p - q
    divergence = (difference * logit_difference)[:num_real].sum(dim=-1).sum(dtype=p_others.dtype)
    grads, target_grads = [], []
    for prob, other, sign in ((p, p_others, 1), (q, q_others, -1)):
        centre = (prob * logit_difference).sum(dim=-1, keepdim=True)
        grads.append((logit_difference - centre).mul_(prob).add_(difference).mul_(sign))
        target_grads.append(sign * (q_others - p_others - centre[:, 0] * (1 - other)))
    return divergence / 2, grads, target_grads


def smoothed_cross_entropy(
    passes: Sequence[Tensor],
    weight: Tensor,
    targets: Tensor,
    num_targets: int,
    smoothing: float,
    kl_weight: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return the label-smoothed loss and the negative log-likelihood, both sums, in nats.

    passes: hidden states, (N, D), of one or two forward passes over a batch. Rows after the first
    `num_targets` are padding. Loss and nll are averaged over the passes. weight: of the output
    projection, (V, D). targets: (N,). The target distribution is 1 - smoothing for the true token
    plus smoothing spread over all V (Szegedy et al. 2016, section 7). The nll has no gradient.
    Probabilities are clamped to the smallest normal fp32 number, about e^-87.

    kl_weight: weight of the mean of the two Kullback-Leibler divergences between two passes
    (R-Drop, Wu et al. 2021, equation 4: that loss is twice this loss, with alpha = 2 * kl_weight).
    """
    if not torch.is_grad_enabled():  # needs_input_grad ignores no_grad
        weight = weight.detach()
    dtype = product_dtype(passes[0])
    # On a GPU, autocast would compute the probabilities, (N, V), in fp32.
    with no_autocast(weight):
        loss, nll = _SmoothedCrossEntropy.apply(
            weight, targets, num_targets, smoothing, kl_weight, dtype, *passes
        )
    return loss, nll


def _append_column(x: Tensor, column: Tensor) -> Tensor:
    """Append a column to a matrix, (N, D), and zeros up to (N, D + 8) for alignment.

    With ones appended to the hidden states and the bias to the weight, their product includes the
    bias.
    """
    return torch.cat([x, column[:, None].to(x.dtype), x.new_zeros(len(x), 7)], dim=1)


class ModelLoss(nn.Module):
    """Model and loss as one module, for DistributedDataParallel."""

    def __init__(self, model: Network, smoothing: float, kl_weight: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self.smoothing = smoothing
        self.kl_weight = kl_weight

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss and the negative log-likelihood, summed over the batch."""
        kl_weight = self.kl_weight if self.training else 0.0
        passes = [self.model(*batch.inputs) for _ in range(2 if kl_weight else 1)]
        weight, bias = self.model.output.weight, self.model.output.bias
        if bias is not None:
            passes = [_append_column(x, x.new_ones(len(x))) for x in passes]
            weight = _append_column(weight, bias)
        return smoothed_cross_entropy(
            passes, weight, batch.labels, batch.num_labels, self.smoothing, kl_weight
        )
