"""What the first updates tell of a run, while there is time to start it otherwise."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import torch

from seq2seq.config import TrainingConfig
from seq2seq.machine.precision import resolve_precision
from seq2seq.machine.threads import OtherLoad
from seq2seq.training.agenda import Agenda

SOON, LATEST = 10.0, 20.0
"""Seconds of updates after which the forecast is made, and before which it must be."""


class Forecast:
    """The speed of the first updates, when the run will end, and what would make it faster."""

    def __init__(
        self,
        training: TrainingConfig,
        agenda: Agenda,
        device: torch.device,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._training, self._agenda, self._device, self._clock = training, agenda, device, clock
        self._load = OtherLoad()
        self._times: list[float] = []
        """When the first update began, and the ends of its first and of the latest micro-batch."""
        self._updates = 0.0
        """Updates made between those two ends, or until the first one."""
        self.is_made = False

    def begin_update(self) -> None:
        """Note that an update begins."""
        self._times = self._times or [self._clock()]

    def add(self, share: float) -> bool:
        """Note a micro-batch, a share of an update; return whether the forecast is due."""
        now = self._clock()
        if len(self._times) < 3:
            # The first one warms up, and counts only as long as it is alone.
            self._times.append(now)
            self._updates = share
        else:
            self._times[2] = now
            self._updates += share
        begun, last = self._times[0], now - self._times[-2]
        elapsed = now - begun
        return not self.is_made and (elapsed >= SOON or elapsed + last > LATEST)

    @property
    def minutes_per_update(self) -> float:
        """How long an update takes, by the micro-batches noted."""
        return (self._times[-1] - self._times[-2]) / self._updates / 60

    def lines(self, tokens_per_update: float) -> Iterator[str]:
        """Yield what is to be said: speed and end, and a warning if the warm-up is too long."""
        self.is_made = True
        pace = self.minutes_per_update
        minutes, steps = self._agenda.minutes_left(pace), self._agenda.last_step(pace)
        yield (
            f"{tokens_per_update / pace / 60:,.0f} tokens/s: about {steps:,.0f} updates, "
            f"{minutes:.0f} min left"
        )
        if steps < self._training.warmup_steps:
            shorter = max(1, int(steps / 10))
            yield "; ".join([
                f"at this speed the run ends after about {steps:,.0f} updates, within its warm-up "
                f"(training.warmup_steps) of {self._training.warmup_steps}",
                *self._remedies(),
                f"train for longer, with a smaller model or smaller updates "
                f"(training.batch_tokens), or warm up for less: training.warmup_steps={shorter}",
            ])  # fmt: skip

    def _remedies(self) -> Iterator[str]:
        """Yield what slows training down on this machine, and can be helped."""
        if self._device.type != "cpu":
            return
        training, cores = self._training, os.cpu_count() or 1
        if training.precision == "bf16" and resolve_precision("auto", self._device) == "fp32":
            yield "this processor has no bf16 products: training.precision=fp32 is faster"
        busy = self._load.cores()
        if busy >= 0.5:
            yield f"other programs use {busy:.1f} of the {cores} cores: stop them"
        threads = torch.get_num_threads()
        if "OMP_NUM_THREADS" in os.environ and threads + busy < cores - 0.5:
            yield (
                f"OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']} leaves cores unused: without it "
                "the number of threads is chosen by their speed"
            )
