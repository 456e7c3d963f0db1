"""Hypotheses of a search, and the length penalty of their scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

END = "</s>"
"""Name of the end symbol among the pieces of a translation."""


@dataclass
class Hypothesis:
    """A translation as SentencePiece pieces, with its scores and alignment if requested."""

    pieces: list[str]
    """SentencePiece pieces without the end symbol."""
    log_prob: float = math.nan
    """Sum over the pieces and the end symbol, in nats."""
    score: float = math.nan
    """log_prob divided by the length penalty; higher is better. The score of a text translated in
    parts is the sum of their scores."""
    text: str = ""
    log_probs: Sequence[float] = ()
    """Log-probability of each piece and of the end symbol."""
    alignment: Sequence[tuple[int, int]] = ()
    """Links (source word, target word), counted from 0."""


@dataclass(frozen=True)
class LengthPenalty:
    """`wu`: ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14). `power`: length^alpha."""

    alpha: float
    form: Literal["wu", "power"]

    def __call__(self, length: int) -> float:
        """Return the divisor of a log-probability; length: tokens, including the end symbol."""
        base = (5 + length) / 6 if self.form == "wu" else length
        return float(base**self.alpha)
