"""What a run's first numbers already tell of it, while there is time to start it otherwise."""

from __future__ import annotations

import os
from collections.abc import Iterator

from seq2seq.config import TrainingConfig

SLOW = 0.2
"""Share of what the cores can do; other work beside threads that wait for each other is below."""


def warnings(
    training: TrainingConfig, *, last_step: float, threads: int, ceiling_share: float
) -> Iterator[str]:
    """Yield what is to be said after the first numbers.

    last_step: the update with which the run ends at this speed. threads: of this process's matrix
    products; 1 where a GPU makes them.
    """
    if last_step < training.warmup_steps:
        yield (
            f"at this speed the run ends after about {last_step:.0f} updates, within its warm-up "
            f"(training.warmup_steps) of {training.warmup_steps}: train for longer, or warm up "
            "for less"
        )
    busy = os.getloadavg()[0] > threads + 0.5 if hasattr(os, "getloadavg") else False
    if threads > 1 and busy and ceiling_share < SLOW:
        yield (
            f"{ceiling_share:.0%} of what {threads} threads could do: other work runs on this "
            "machine, and threads wait for each other; OMP_NUM_THREADS=1 may be faster"
        )
