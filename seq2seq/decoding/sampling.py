"""Sampling: temperature, top-k, top-p and reproducible random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import xxhash
from torch import Tensor

from seq2seq.config import check_bounds
from seq2seq.config.schema import Count, Share, Temperature


@dataclass(frozen=True)
class Sampling:
    """How to sample tokens."""

    temperature: Temperature = 1.0
    """Divisor of the logits; 0 selects the most probable token."""
    top_k: Count | None = None
    """Sample only from the K most probable tokens."""
    top_p: Share | None = None
    """Sample only from the smallest set of most probable tokens with this total probability
    (nucleus sampling, Holtzman et al. 2020)."""

    def __post_init__(self) -> None:
        check_bounds(self)

    def restrict(self, logits: Tensor) -> Tensor:
        """Return logits, (R, V), divided by the temperature, and -inf for excluded tokens."""
        if self.temperature == 0:
            best = logits.argmax(dim=-1, keepdim=True)
            return torch.full_like(logits, -torch.inf).scatter_(-1, best, 0.0)
        logits = logits / self.temperature
        if self.top_k is None and self.top_p is None:
            return logits
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        kept = torch.ones_like(ordered, dtype=torch.bool)
        if self.top_k is not None:
            kept[:, self.top_k :] = False
        if self.top_p is not None:
            probs = ordered.softmax(dim=-1)
            kept &= probs.cumsum(dim=-1) - probs < self.top_p
            kept[:, 0] = True  # whatever the rounding
        return torch.full_like(logits, -torch.inf).scatter_(
            -1, order, ordered.masked_fill(~kept, -torch.inf)
        )


def draw(logits: Tensor, seeds: Sequence[Sequence[int]]) -> Tensor:
    """Sample a token for each row of logits, (R, V), with the probabilities of their softmax.

    seeds: of each row. The token is the argmax of logits and Gumbel noise (Gumbel 1954), a function
    of seeds and id. So the same seeds draw the same token for the same logits, up to rounding: the
    two highest sums would have to be closer than that.
    """
    # In float64, which Apple's GPU does not support.
    wide = logits.cpu() if logits.is_mps else logits
    return (
        (wide.double() + gumbel(seeds, logits.shape[-1], wide.device))
        .argmax(dim=-1)
        .to(logits.device)
    )


def gumbel(seeds: Sequence[Sequence[int]], size: int, device: torch.device) -> Tensor:
    """Return standard Gumbel noise, (R, size), in float64, a function of seeds and column.

    Row by row the numbers of the generator SplitMix64 (Steele et al. 2014), which has no state: the
    device computes all of them at once.
    """
    keys = [xxhash.xxh3_64_intdigest(repr(tuple(each)).encode()) - 2**63 for each in seeds]
    places = torch.arange(1, size + 1, device=device) * _signed(0x9E3779B97F4A7C15)
    bits = torch.tensor(keys, device=device)[:, None] + places
    bits = (bits ^ _shifted(bits, 30)) * _signed(0xBF58476D1CE4E5B9)
    bits = (bits ^ _shifted(bits, 27)) * _signed(0x94D049BB133111EB)
    bits = bits ^ _shifted(bits, 31)
    uniform = (_shifted(bits, 12).double() + 0.5) * 2.0**-52  # never 0 or 1
    return uniform.log_().neg_().log_().neg_()


def _signed(number: int) -> int:
    """Return the int64 with the bits of an unsigned number."""
    return number - 2**64 if number >= 2**63 else number


def _shifted(bits: Tensor, count: int) -> Tensor:
    """Shift unsigned numbers, as int64, to the right."""
    return (bits >> count) & ((1 << (64 - count)) - 1)
