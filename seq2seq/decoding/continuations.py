"""What may follow each hypothesis of a search: the best tokens of all, without sorting all.

B is the number of sentences, W the beam width, V the vocabulary size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

CHUNK_ROWS = 64
"""Number of hypotheses whose logits are computed at once on a CPU: what follows the product finds
those of V = 8,000 in its cache."""
BLOCK = 64
"""Number of tokens, about, of whose log-probabilities the maximum is found first."""

Best = tuple[Tensor, Tensor, Tensor]
"""The best continuations of each sentence, (B, count), the best first: their log-probabilities, NaN
before all others; the hypotheses that they continue; their new tokens."""


@dataclass(frozen=True)
class Continuations:
    """The next tokens of all hypotheses, by the hidden states of one model or of several."""

    hidden: Sequence[Tensor]
    """(B, W, D), of each model; an ensemble averages the probabilities."""
    outputs: Sequence[nn.Module]
    """The output projection of each model."""
    never: Tensor
    """Tokens that are no continuation: padding, the start symbol, the unknown token."""

    def all(self) -> Tensor:
        """Return the log-probabilities of all tokens, (B, W, V); -inf for those in `never`."""
        parts = [
            output(hidden).float().log_softmax(dim=-1)
            for hidden, output in zip(self.hidden, self.outputs, strict=True)
        ]
        return mean_log_prob(parts).index_fill_(-1, self.never, -torch.inf)

    def best(self, live: Tensor, count: int, eos_id: int, must_end: NDArray[np.bool_]) -> Best:
        """Return the `count` best continuations of each sentence.

        live: log-probabilities of the hypotheses, (B, W). must_end: (B,): the sentences of which
        only the end symbol is a continuation.
        """
        size, width = live.shape
        on_cpu = live.device.type == "cpu"
        at_once = max(1, CHUNK_ROWS // width if on_cpu else size)
        found = []
        for start in range(0, size, at_once):
            own = slice(start, start + at_once)
            part = Continuations([x[own] for x in self.hidden], self.outputs, self.never)
            best = part._best_by_kernel if on_cpu and len(self.hidden) == 1 else part._best_by_torch
            found.append(best(live[own], count, eos_id, must_end[own]))
        ranks, origins, tokens = map(torch.cat, zip(*found, strict=True))
        return ranks, origins, tokens

    def _best_by_torch(
        self, live: Tensor, count: int, eos_id: int, must_end: NDArray[np.bool_]
    ) -> Best:
        log_probs = self.all()
        if must_end.any():
            ends = torch.from_numpy(must_end).to(live.device)
            log_probs = torch.where(ends[:, None, None], only(eos_id, log_probs), log_probs)
        return best_of(log_probs, live, count)

    def _best_by_kernel(
        self, live: Tensor, count: int, eos_id: int, must_end: NDArray[np.bool_]
    ) -> Best:
        from seq2seq.machine import kernels  # which not every command has to load

        [hidden], [output] = self.hidden, self.outputs
        ranks = torch.empty(len(live), count, dtype=torch.float32)
        origins, tokens = (torch.empty(len(live), count, dtype=torch.int64) for _ in range(2))
        given = output(hidden).float().numpy(), live.numpy(), self.never.numpy()
        found = ranks.numpy(), origins.numpy(), tokens.numpy()
        kernels.best_continuations(*given, eos_id, must_end, *found)
        return ranks, origins, tokens


def best_of(log_probs: Tensor, live: Tensor, count: int) -> Best:
    """Return the best continuations by log-probabilities of tokens, (B, W, V), and hypotheses.

    They are all in the blocks of tokens with the highest maxima, so that only these are sorted.
    """
    size, width, vocab_size = log_probs.shape
    count = min(count, width * vocab_size)
    length = _block_size(vocab_size)
    blocks = log_probs.view(size, -1, length)  # (B, W * blocks, length)
    per_row = vocab_size // length
    if 4 * count > width * per_row:
        ranks, places = (log_probs + live[:, :, None]).flatten(1).topk(count)
        return ranks, places.div(vocab_size, rounding_mode="floor"), places.remainder_(vocab_size)
    maxima = (blocks.amax(dim=-1).view(size, width, per_row) + live[:, :, None]).flatten(1)
    if count == 1:
        ranks, chosen = maxima.max(dim=-1, keepdim=True)
    else:
        ranks, chosen = maxima.topk(count)
    origins = chosen.div(per_row, rounding_mode="floor")
    inside = blocks.gather(1, chosen[:, :, None].expand(-1, -1, length))
    inside += live.gather(1, origins)[:, :, None]
    if count == 1:
        _, places = inside.flatten(1).max(dim=-1, keepdim=True)
        return ranks, origins, chosen.remainder_(per_row).mul_(length).add_(places)
    ranks, places = inside.flatten(1).topk(count)
    numbers = places.div(length, rounding_mode="floor")
    tokens = chosen.remainder_(per_row).gather(1, numbers)
    return ranks, origins.gather(1, numbers), tokens.mul_(length).add_(places.remainder_(length))


def only(token: int, values: Tensor) -> Tensor:
    """Return the values with all but those of one token at -inf."""
    alone = torch.full_like(values, -torch.inf)
    alone[..., token] = values[..., token]
    return alone


@cache
def _block_size(vocab_size: int) -> int:
    """Return a divisor near `BLOCK`; 1 if there is none."""
    near = sorted(range(BLOCK // 2, 2 * BLOCK + 1), key=lambda each: abs(each - BLOCK))
    return next((each for each in near if vocab_size % each == 0), 1)


def mean_log_prob(log_probs: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the mean probability."""
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.stack(list(log_probs)).logsumexp(dim=0) - math.log(len(log_probs))
