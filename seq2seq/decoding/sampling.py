"""Sampling: temperature, top-k, top-p and reproducible random numbers; as a rule of a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import xxhash
from torch import Tensor

from seq2seq.config import DecodingConfig, from_tree
from seq2seq.decoding.options import as_options
from seq2seq.decoding.search import Live
from seq2seq.errors import UserError


@dataclass(frozen=True)
class Sampling:
    """How to sample tokens."""

    temperature: float = 1.0
    """Divisor of the logits; 0 selects the most probable token."""
    top_k: int | None = None
    """Sample only from the K most probable tokens."""
    top_p: float | None = None
    """Sample only from the smallest set of most probable tokens with this total probability
    (nucleus sampling, Holtzman et al. 2020)."""

    def __post_init__(self) -> None:
        try:
            checked = from_tree(DecodingConfig(), vars(self), "", "decoding")
        except UserError as error:
            raise as_options(error) from None
        for name in vars(self):
            object.__setattr__(self, name, getattr(checked, name))

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


def sample_tokens(logits: Tensor, seeds: Sequence[Sequence[int]]) -> Tensor:
    """Sample a token for each row of logits, (R, V), with the probabilities of their softmax.

    seeds: of each row. The token is the argmax of logits and Gumbel noise (Gumbel 1954), a function
    of seeds and id. So the same seeds draw the same token for the same logits, up to rounding: the
    two highest sums would have to be closer than that.
    """
    return (logits + gumbel(seeds, logits.shape[-1], logits.device)).argmax(dim=-1)


def gumbel(seeds: Sequence[Sequence[int]], size: int, device: torch.device) -> Tensor:
    """Return standard Gumbel noise, (R, size), a function of the seeds of each row."""
    rows = torch.empty(len(seeds), size)
    for row, own in zip(rows, seeds, strict=True):
        key = xxhash.xxh3_64_intdigest(repr(tuple(own)).encode())
        row.exponential_(generator=torch.Generator().manual_seed(key))
    return rows.to(device, non_blocking=True).log_().neg_()


@dataclass(frozen=True)
class Sampler:
    """Leaves one token to each hypothesis of a beam of one, drawn at random.

    Every sentence has its own seeds, so that its draws do not depend on its batch.
    """

    sampling: Sampling
    seeds: Sequence[Sequence[int]]
    """Of each sentence."""

    def __call__(self, live: Live, values: Tensor) -> Tensor:
        """Return the values with all but one drawn token of each row at -inf."""
        seeds = [(*self.seeds[sentence], live.length) for sentence in live.sentences.tolist()]
        tokens = sample_tokens(self.sampling.restrict(values[:, 0]), seeds)[:, None, None]
        drawn = torch.full_like(values, -torch.inf)
        return drawn.scatter_(2, tokens, values.gather(2, tokens))
