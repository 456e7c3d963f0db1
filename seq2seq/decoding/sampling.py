"""Sampling with temperature, top-k, top-p and reproducible random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import xxhash
from torch import Tensor

from seq2seq.config import DecodingConfig, from_tree
from seq2seq.decoding.search import BeamState

MIN_TEMPERATURE = 1e-6
"""Lower temperatures select the most probable token: divided by them, logits would overflow."""


@dataclass(frozen=True)
class Sampling:
    """Parameters of sampling."""

    temperature: float = 1.0
    """Divisor of the logits; 0 selects the most probable token."""
    top_k: int | None = None
    """Sample only from the K most probable tokens."""
    top_p: float | None = None
    """Sample only from the smallest set of most probable tokens with this total probability
    (nucleus sampling, Holtzman et al. 2020)."""

    def __post_init__(self) -> None:
        from_tree(DecodingConfig(), vars(self), "options", "decoding")  # checks the values

    def restrict(self, logits: Tensor) -> Tensor:
        """Return logits, (R, V), divided by the temperature, with excluded tokens at -inf."""
        if self.temperature < MIN_TEMPERATURE:
            best = logits.argmax(dim=-1, keepdim=True)
            return torch.full_like(logits, -torch.inf).scatter_(-1, best, 0.0)
        logits = logits / self.temperature
        if self.top_p is not None:
            ordered, order = logits.sort(dim=-1, descending=True)
            probs = ordered.softmax(dim=-1)
            excluded = probs.cumsum(dim=-1) - probs >= self.top_p
            excluded[:, 0] = False  # at least one token, despite rounding
            logits = logits.masked_fill(excluded.scatter(-1, order, excluded), -torch.inf)
        if self.top_k is not None:
            values, tokens = logits.topk(min(self.top_k, logits.shape[-1]))
            logits = torch.full_like(logits, -torch.inf).scatter_(-1, tokens, values)
        return logits


def sample_tokens(logits: Tensor, seeds: Sequence[Sequence[int]]) -> Tensor:
    """Sample a token for each row of logits, (R, V), from their softmax distribution.

    seeds: random seed of each row, a sequence of integers. The token is the argmax of the logits
    plus Gumbel noise (Gumbel 1954). Equal seeds and logits give equal tokens. Rounding of the
    logits changes a token only if the two highest sums are that close.
    """
    return (logits + gumbel_noise(seeds, logits.shape[-1], logits.device)).argmax(dim=-1)


def gumbel_noise(seeds: Sequence[Sequence[int]], size: int, device: torch.device) -> Tensor:
    """Return standard Gumbel noise, (R, size), determined by the seed of each row."""
    noise = torch.empty(len(seeds), size)
    for row, seed in zip(noise, seeds, strict=True):
        key = xxhash.xxh3_64_intdigest(repr(tuple(seed)).encode())
        row.exponential_(generator=torch.Generator().manual_seed(key))
    return noise.to(device, non_blocking=True).log_().neg_()


@dataclass(frozen=True)
class Sampler:
    """Samples the next token of each hypothesis. The beam width must be 1.

    Samples do not depend on the batch: each sentence has its own random seed.
    """

    sampling: Sampling
    seeds: Sequence[Sequence[int]]
    """Random seeds, by sentence."""

    def __call__(self, state: BeamState, values: Tensor) -> Tensor:
        seeds = [(*self.seeds[sentence], state.length) for sentence in state.sentences.tolist()]
        tokens = sample_tokens(self.sampling.restrict(values[:, 0]), seeds)[:, None, None]
        masked = torch.full_like(values, -torch.inf)
        return masked.scatter_(2, tokens, values.gather(2, tokens))
