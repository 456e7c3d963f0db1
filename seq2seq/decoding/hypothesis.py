"""A translation as a search finds it, and the length penalty of its score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

END = "</s>"
"""Name of the end symbol among the pieces of a translation."""


@dataclass
class Hypothesis:
    """A translation: its pieces and, where asked for, its score and alignment."""

    pieces: list[str]
    """As SentencePiece names them, without the end symbol."""
    log_prob: float = math.nan
    """Sum over the pieces and the end symbol, in nats."""
    score: float = math.nan
    """log_prob divided by the length penalty; higher is better. The score of a text in several
    parts is their sum."""
    text: str = ""
    log_probs: Sequence[float] = ()
    """Log-probability of each piece and of the end symbol."""
    alignment: Sequence[tuple[int, int]] = ()
    """Source word and target word, counted from 0."""


@dataclass(frozen=True)
class LengthPenalty:
    """Divisor of a hypothesis's log-probability; `length` includes the end symbol."""

    alpha: float
    form: Literal["wu", "power"]

    def __call__(self, length: int) -> float:
        """wu: ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14); power: length^alpha."""
        base = (5 + length) / 6 if self.form == "wu" else length
        return float(base**self.alpha)
