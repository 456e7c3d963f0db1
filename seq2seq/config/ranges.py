"""Types of the values of a recipe, with their bounds."""

from __future__ import annotations

from typing import Annotated, NamedTuple


class Range(NamedTuple):
    """Inclusive bounds of a number."""

    minimum: float
    maximum: float


_MAX = 2**31 - 1

Count = Annotated[int, Range(1, _MAX)]
CountOrZero = Annotated[int, Range(0, _MAX)]
Width = Annotated[int, Range(1, 2**20)]
Positive = Annotated[float, Range(1e-30, 1e30)]
NonNegative = Annotated[float, Range(0, 1e6)]
Patience = Annotated[float, Range(1, 1e6)]
Probability = Annotated[float, Range(0, 1 - 1e-9)]
Share = Annotated[float, Range(1e-9, 1)]
Seed = Annotated[int, Range(0, 2**32 - 1)]


CHANGEABLE = {"changeable": True}
"""Metadata of keys that may change when a run is resumed."""
