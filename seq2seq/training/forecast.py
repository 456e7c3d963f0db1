"""Forecast speed and end of a run from its first updates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

from seq2seq.config import TrainingConfig
from seq2seq.machine.precision import resolve_precision
from seq2seq.machine.threads import OtherLoad, threads_fixed_by, usable_cores
from seq2seq.progress_bar import duration
from seq2seq.training.schedule import minutes_left
from seq2seq.training.state import RunState

SOON, LATEST = 10.0, 20.0
"""Seconds of training after which the forecast is made, and by which it must be made."""


SHORTEST_WARMUP = 100
"""Updates. A tenth of a run is a usual warm-up, but one of fewer updates helps no run."""


class Forecast:
    """The speed of the first updates, the expected end, and what would make the run faster."""

    def __init__(
        self,
        training: TrainingConfig,
        state: RunState,
        device: torch.device,
        num_processes: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._training, self._state, self._clock = training, state, clock
        self._device, self._num_processes = device, num_processes
        self.load = OtherLoad()
        self._times: list[float] = []
        """Start of the first update, end of its first and of the latest micro-batch."""
        self._paused: float | None = None
        self._updates = 0.0
        """Updates between the last two times."""
        self.is_made = False

    def begin_update(self) -> None:
        """Record the start of an update."""
        now = self._clock()
        if self._paused is not None:  # that time does not count
            self._times = [time + now - self._paused for time in self._times]
            self._paused = None
        self._times = self._times or [now]

    def pause(self) -> None:
        """Exclude the time until the next update, for example a validation."""
        self._paused = self._clock()

    def add(self, share: float) -> bool:
        """Record a micro-batch, a fraction of an update; return whether the forecast is due."""
        if not share:  # this process had no example in this update
            return False
        now = self._clock()
        elapsed, last = now - self._times[0], now - self._times[-1]
        if len(self._times) < 3:
            # The first one is a warm-up, and only counts as long as there is no other.
            self._times.append(now)
            self._updates = share
        else:
            self._times[2] = now
            self._updates += share
        return not self.is_made and (elapsed >= SOON or elapsed + last > LATEST)

    @property
    def minutes_per_update(self) -> float:
        """Return the measured time per update."""
        return (self._times[-1] - self._times[-2]) / self._updates / 60

    def make(self, tokens_per_update: float) -> tuple[str, str | None]:
        """Return a line with speed and end of the run, and a warning if it ends in its warm-up."""
        self.is_made = True
        pace = self.minutes_per_update
        minutes = minutes_left(self._training, self._state, pace)
        steps = self._state.step + minutes / pace
        line = (
            f"{tokens_per_update / pace / 60:,.0f} tokens/s: the run ends at about update "
            f"{steps:,.0f}, in {duration(minutes)}"
        )
        if steps >= self._training.warmup_steps:
            return line, None
        advice = "train for longer, with a smaller model or smaller updates (training.batch_tokens)"
        if (shorter := int(steps / 10)) >= SHORTEST_WARMUP:
            advice += f", or set a shorter warm-up: training.warmup_steps={shorter}"
        warning = [
            f"the run ends at about update {steps:,.0f}, within its warm-up "
            f"(training.warmup_steps) of {self._training.warmup_steps}",
            *self._remedies(),
            advice,
        ]
        return line, "; ".join(warning)

    def _remedies(self) -> Iterator[str]:
        """Yield what would make training faster on this machine."""
        if self._device.type != "cpu" or self._num_processes > 1:
            return
        precision, cores = self._training.precision, usable_cores()
        if precision in ("bf16", "fp16") and resolve_precision("auto", self._device) == "fp32":
            yield f"this processor is slower in {precision}: set training.precision=auto"
        busy, fixed = self.load.cores(), threads_fixed_by()
        if busy >= 0.5:
            yield f"other programs use {busy:.1f} of the {cores} cores: end them"
        if fixed and torch.get_num_threads() + busy < cores - 0.5:
            yield f"{fixed} leaves cores unused: unset it to have their number chosen"
