"""Random numbers of training examples, which depend only on seed, epoch and position."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator, Philox
from numpy.typing import NDArray


def generators(positions: NDArray[np.int64], *, seed: int, epoch: int) -> list[Generator]:
    """Return a random generator for each example, seeded by its position in the epoch."""
    key = [seed % 2**64, epoch]
    return [Generator(Philox(key=key, counter=[0, 0, 0, i])) for i in positions.tolist()]


def uniform(
    positions: NDArray[np.int64], count: int, *, seed: int, epoch: int
) -> NDArray[np.float64]:
    """Return `count` numbers from [0, 1) for each example, (B, count).

    Much faster than a generator for each example.
    """
    if not len(positions):  # fewer examples than processes
        return np.empty((0, count))
    width = -(-count // 4) * 4  # a step of Philox yields four numbers
    first = int(positions.min())
    counter = [first * width // 4, 0, 1, 0]  # `generators` draw with other counters
    random = Generator(Philox(key=[seed % 2**64, epoch], counter=counter))
    rows = random.random((int(positions.max()) - first + 1, width))
    return rows[positions - first, :count]
