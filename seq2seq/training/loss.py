"""Label-smoothed cross-entropy and R-Drop, with only a chunk of the logits in memory."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from seq2seq.data.batching import Batch
from seq2seq.machine.precision import no_autocast, product_dtype
from seq2seq.model.transformer import Network

CHUNK_TOKENS = 2048
"""Number C of tokens whose logits are in memory at once. It is even, for the pairs of R-Drop."""


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Processes tokens in chunks, and computes gradients in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        num_targets: int,
        smoothing: float,
        alpha: float,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        states, matrix = hidden.to(dtype), weight.to(dtype)
        # Sums are in fp32 or higher.
        mean_weight = weight.mean(dim=0, dtype=torch.promote_types(dtype, torch.float32))
        loss_sum, nll_sum = mean_weight.new_zeros(()), mean_weight.new_zeros(())
        needs_gradients, needs_weight = any(ctx.needs_input_grad), ctx.needs_input_grad[1]
        if needs_gradients:
            grad_hidden = torch.zeros_like(hidden, dtype=mean_weight.dtype)
            grad_weight = torch.zeros_like(weight) if needs_weight else weight.new_zeros(())
        # In fp16, `grad_scale` keeps small gradients from underflow. `state_scale` keeps the matrix
        # that is added to `grad_weight`, a sum over the tokens of a chunk, from overflow.
        is_fp16 = dtype == torch.float16
        grad_scale, state_scale = (16, 1 / 128) if is_fp16 else (1, 1)
        for start in range(0, num_targets, CHUNK_TOKENS):
            # Padding after the real tokens is included, so that fewer shapes occur.
            chunk, num_real = slice(start, start + CHUNK_TOKENS), num_targets - start
            target = torch.arange(len(targets[chunk]), device=targets.device), targets[chunk]
            logits = states[chunk] @ matrix.t()  # (C, V)
            nll, others, sum_of_others = _softmax(logits, target)
            # The mean of -log p over the vocabulary is logsumexp(logits) - mean(logits), and
            # logsumexp is nll + target_logit. It is at least log(V), but the clamped nll may make
            # it smaller. The mean of the logits is no matrix product, which may use TF32 on a GPU.
            mean_logits = (states[chunk] * mean_weight).sum(dim=-1)
            mean_nll = (nll + logits[target] - mean_logits).clamp_(min=math.log(len(weight)))
            nll_sum += nll[:num_real].sum()
            loss_sum += ((1 - smoothing) * nll + smoothing * mean_nll)[:num_real].sum()
            # The gradient is probs - (1 - smoothing) * one_hot - smoothing / V. At the target, the
            # first two terms are `smoothing - sum_of_others`. The last term follows after the loop.
            grad_logits, grad_target = others, smoothing - sum_of_others  # `others` is overwritten
            if alpha:
                divergence = _add_divergence(
                    alpha, logits, target, sum_of_others, grad_logits, grad_target
                )
                loss_sum += divergence[: num_real // 2].sum()
            if needs_gradients:
                grad_logits[target] = grad_target.to(grad_logits.dtype)
                grad_logits[num_real:] = 0
                chunk_states = states[chunk]
                if is_fp16:
                    grad_logits = grad_logits.mul_(grad_scale).to(dtype)
                    chunk_states = chunk_states * state_scale
                grad_hidden[chunk].add_(grad_logits @ matrix, alpha=1 / grad_scale)
                if needs_weight:
                    grad_weight.add_(
                        grad_logits.t() @ chunk_states, alpha=1 / (grad_scale * state_scale)
                    )
        if needs_gradients:
            # Smoothing of the targets, without a pass over (N, V).
            grad_hidden[:num_targets] -= smoothing * mean_weight
            if needs_weight:
                state_sum = hidden[:num_targets].sum(dim=0, dtype=mean_weight.dtype)
                grad_weight -= smoothing / len(weight) * state_sum
            ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.mark_non_differentiable(nll_sum)
        return loss_sum, nll_sum

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        grads = grad_hidden, grad_weight if ctx.needs_input_grad[1] else None
        return *(x if x is None else x * grad_loss for x in grads), *[None] * 5


def _softmax(logits: Tensor, target: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the nll of the targets, (C,), the other probabilities, (C, V), and their sums, (C,).

    target: rows and columns of the targets, where the other probabilities are 0.
    A probability close to 1, rounded to bf16, loses its difference from 1. The sum of the other
    probabilities keeps it.
    """
    # In fp16, probabilities below 6e-8 would be 0.
    others = logits.softmax(-1, dtype=torch.float32 if logits.dtype == torch.float16 else None)
    sum_dtype = torch.promote_types(others.dtype, torch.float32)
    prob = others[target].to(sum_dtype)
    # scatter_ is slow on a CPU. A Python number would be copied to a GPU, with a synchronisation.
    others[target] = others.new_zeros(())
    # On a CPU, sum(dtype=sum_dtype) would convert the whole matrix first.
    sums = others.sum(dim=-1).to(sum_dtype)
    unlikely = prob.clamp(min=torch.finfo(sum_dtype).tiny).log()
    return torch.where(prob > 0.5, torch.log1p(-sums), unlikely).neg_(), others, sums


def _add_divergence(
    alpha: float,
    logits: Tensor,
    target: tuple[Tensor, Tensor],
    sum_of_others: Tensor,
    grad_logits: Tensor,
    grad_target: Tensor,
) -> Tensor:
    """Return alpha times the divergence of each pair of rows, (C/2,), and add its gradient.

    The rows of a pair are two distributions p and q of a token. Their divergence, the mean of
    KL(p, q) and KL(q, p), is sum((p - q) * (log p - log q)) / 2. Since p - q sums to 0, the
    difference of the logits, shifted by any constant, can replace log p - log q. It is shifted to 0
    at the target, so that only the other, small probabilities matter.

    grad_logits: the other probabilities from `_softmax`, to which the gradient is added in place,
    except at the targets. grad_target: to this, (C,), the gradient at the targets is added.
    """
    rows, columns = target
    log_ratio = logits[::2] - logits[1::2]
    log_ratio -= log_ratio[rows[: len(log_ratio)], columns[::2]][:, None]
    difference = grad_logits[::2] - grad_logits[1::2]
    # Of the targets, where p - q is the negative difference of the sums of the other probabilities.
    target_difference = sum_of_others[1::2] - sum_of_others[::2]
    divergence = (difference * log_ratio).sum(dim=-1).to(sum_of_others.dtype)
    for first, sign in ((0, 1), (1, -1)):
        probs = grad_logits[first::2]
        mean = (probs * log_ratio).sum(dim=-1, keepdim=True)
        target_prob = 1 - sum_of_others[first::2]
        grad = target_difference - mean[:, 0] * target_prob
        grad_target[first::2].add_(grad, alpha=sign * alpha / 2)
        probs.add_((log_ratio - mean).mul_(probs).add_(difference), alpha=sign * alpha / 2)
    return alpha / 2 * divergence


def smoothed_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    num_targets: int,
    smoothing: float,
    alpha: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return the label-smoothed loss and the negative log-likelihood, both sums, in nats.

    hidden: hidden states, (N, D). Those after the first `num_targets` are padding. weight: of the
    output projection, (V, D). targets: (N,). The target distribution is 1 - smoothing for the true
    token plus smoothing spread over all V (Szegedy et al. 2016, section 7). The nll has no
    gradient. Probabilities are clamped to the smallest normal fp32 number, about e^-87.
    alpha: weight of the divergence of each pair of rows, for R-Drop.
    """
    if not torch.is_grad_enabled():  # needs_input_grad ignores no_grad
        weight = weight.detach()
    dtype = product_dtype(hidden)
    # On a GPU, autocast would compute the probabilities, (N, V), in fp32.
    with no_autocast(weight):
        loss, nll = _SmoothedCrossEntropy.apply(
            hidden, weight, targets, num_targets, smoothing, alpha, dtype
        )
    return loss, nll


class ModelLoss(nn.Module):
    """Model and loss as one module, for DistributedDataParallel."""

    def __init__(self, model: Network, smoothing: float, alpha: float = 0.0) -> None:
        """alpha: weight of the divergence in R-Drop, which is used in training only; 0 for none."""
        super().__init__()
        self.model = model
        self.smoothing = smoothing
        self.alpha = alpha

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss and the negative log-likelihood, summed over the batch.

        With R-Drop, two passes give half of its loss and their mean nll. The loss of R-Drop is the
        loss of both passes plus alpha times the mean of the two Kullback-Leibler divergences
        between them (Wu et al. 2021, equation 4).
        """
        weight, bias = self.model.output.weight, self.model.output.bias
        if bias is not None:
            weight = _append_column(weight, bias)
        hidden, targets, count = self._hidden(batch), batch.labels, batch.num_labels
        if not (self.training and self.alpha):
            return smoothed_cross_entropy(hidden, weight, targets, count, self.smoothing)
        pairs = torch.stack([hidden, self._hidden(batch)], dim=1).flatten(0, 1)  # (2 N, D)
        targets = targets.repeat_interleave(2)
        loss, nll = smoothed_cross_entropy(
            pairs, weight, targets, 2 * count, self.smoothing, self.alpha
        )
        return loss / 2, nll / 2

    def _hidden(self, batch: Batch) -> Tensor:
        """Return the hidden states of a pass, with a column of ones if the output has a bias."""
        hidden = self.model(*batch.inputs)
        has_bias = self.model.output.bias is not None
        return _append_column(hidden, hidden.new_ones(len(hidden))) if has_bias else hidden


def _append_column(x: Tensor, column: Tensor) -> Tensor:
    """Append a column to a matrix, (N, D), and zeros up to (N, D + 8) for alignment.

    With ones appended to the hidden states and the bias to the weight, their product includes the
    bias.
    """
    return torch.cat([x, column[:, None].to(x.dtype), x.new_zeros(len(x), 7)], dim=1)
