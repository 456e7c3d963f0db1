"""What may follow each hypothesis of a search, without the log-probabilities of all tokens.

R is the number of hypotheses, V the vocabulary size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

CHUNK_ROWS = 64
"""Number of hypotheses whose logits are computed at once on a CPU: those of V = 8,000 fit its L2
cache, and their maxima and their normaliser cost half as much there."""
BLOCK = 64
"""Number of logits, about, whose maximum is found first."""


@dataclass(frozen=True)
class Best:
    """The best continuations of each hypothesis."""

    log_probs: Tensor
    """(R, count), the highest first; NaN before all others."""
    ids: Tensor
    """(R, count)."""
    ends: Tensor
    """(R,): the log-probability of the end symbol."""


@dataclass(frozen=True)
class Continuations:
    """The next tokens of R hypotheses, by the hidden states of one model or of several."""

    hidden: Sequence[Tensor]
    """(R, D), of each model; an ensemble averages the probabilities."""
    outputs: Sequence[nn.Module]
    """The output projection of each model."""
    never: Tensor
    """Tokens that are no continuation: padding, the start symbol, the unknown token."""

    def all(self) -> Tensor:
        """Return the log-probabilities of all tokens, (R, V); -inf for those that are none."""
        parts = [
            output(hidden).float().log_softmax(dim=-1)
            for hidden, output in zip(self.hidden, self.outputs, strict=True)
        ]
        return mean_log_prob(parts).index_fill_(-1, self.never, -torch.inf)

    def best(self, count: int, eos_id: int) -> Best:
        """Return the best continuations, and the log-probability of the end symbol."""
        first = self.hidden[0]
        rows = CHUNK_ROWS if first.device.type == "cpu" else max(1, len(first))
        chunks = zip(*(each.split(rows) for each in self.hidden), strict=True)
        found = [self._best(chunk, count, eos_id) for chunk in chunks]
        if len(found) == 1:
            return found[0]
        log_probs, ids, ends = zip(
            *((each.log_probs, each.ids, each.ends) for each in found), strict=True
        )
        return Best(torch.cat(log_probs), torch.cat(ids), torch.cat(ends))

    def _best(self, hidden: Sequence[Tensor], count: int, eos_id: int) -> Best:
        if len(hidden) > 1:
            log_probs = Continuations(hidden, self.outputs, self.never).all()
            return Best(*highest(log_probs, count), log_probs[:, eos_id])
        logits = self.outputs[0](hidden[0]).float()
        # torch's softmax takes half as long as its logsumexp. Of the best continuation it is at
        # least 1 / V, unless a token that is none takes nearly all.
        probs = logits.softmax(dim=-1)
        values, ids = highest(logits.index_fill_(-1, self.never, -torch.inf), count)
        largest = probs.gather(1, ids[:, :1]).clamp_(min=torch.finfo(probs.dtype).tiny)
        normaliser = values[:, :1] - largest.log_()
        return Best(values - normaliser, ids, logits[:, eos_id] - normaliser[:, 0])


def highest(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the highest values along the last axis, NaN first, and their places.

    All are among the blocks with the highest maxima, so that few values are sorted.
    """
    count = min(count, x.shape[-1])
    if count == 1 and x.shape[-1] < BLOCK:
        return x.max(dim=-1, keepdim=True)
    size = _block_size(x.shape[-1])
    if count * size * 4 > x.shape[-1]:
        return x.topk(count, dim=-1)
    blocks = x.unflatten(-1, (-1, size))
    chosen = blocks.amax(dim=-1).topk(count, dim=-1).indices  # (..., count)
    inside = blocks.gather(-2, chosen[..., None].expand(*chosen.shape, size))
    values, places = inside.flatten(-2).topk(count, dim=-1)
    numbers = chosen.gather(-1, places.div(size, rounding_mode="floor"))
    return values, numbers.mul_(size).add_(places.remainder_(size))


@cache
def _block_size(size: int) -> int:
    """Return a divisor of `size` near `BLOCK`; `size` itself if there is none."""
    near = sorted(range(BLOCK // 2, 2 * BLOCK + 1), key=lambda each: abs(each - BLOCK))
    return next((each for each in near if size % each == 0), size)


def mean_log_prob(log_probs: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the mean probability."""
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.stack(list(log_probs)).logsumexp(dim=0) - math.log(len(log_probs))
