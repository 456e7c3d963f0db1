"""What the engine searches for: rows of token ids, and what their translations must obey."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seq2seq.decoding.constraints import Term


@dataclass(frozen=True)
class Query:
    """What to translate: source ids without the end symbol, and what its translation must obey."""

    source: Sequence[int]
    prefix: Sequence[int] = ()
    """Target ids that the translation starts with."""
    terms: tuple[Term, ...] = ()
    seed: tuple[int, ...] = (0,)
    """Of the samples."""
