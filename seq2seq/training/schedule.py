"""When things happen in a run: learning rate of an update, what is due after it, the forecast."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from seq2seq.config import TrainingConfig
from seq2seq.machine.threads import OtherLoad, threads_fixed_by, usable_cores
from seq2seq.training.checkpoint import RunState

SOON, LATEST = 10.0, 20.0
"""Seconds of training after which the forecast is made, and by which it must be made."""
SHORTEST_WARMUP = 100
"""Updates. A tenth of a run is a usual warm-up, but one of fewer updates helps no run."""


def learning_rate(config: TrainingConfig, dim: int, step: int, elapsed_minutes: float = 0) -> float:
    """Return the learning rate of update `step`, counted from 1.

    noam: lr * D^-0.5 * min(step^-0.5, step * warmup^-1.5) (Vaswani et al. 2017, equation 3).
    inverse_sqrt: linear to the peak `lr`, then lr * sqrt(warmup / step).
    cosine: linear to the peak `lr`, then half a cosine down to `lr_end`, by the larger of two
    fractions: updates after the warm-up, and all of `max_minutes`, warm-up included.
    """
    warmup = config.warmup_steps
    if config.schedule == "noam":
        return config.lr * dim**-0.5 * min(step**-0.5, step * warmup**-1.5)
    if step <= warmup:
        return config.lr * step / warmup
    if config.schedule == "inverse_sqrt":
        return config.lr * math.sqrt(warmup / step)
    done = (step - warmup) / max(1, config.max_steps - warmup)
    if config.max_minutes is not None:
        done = max(done, elapsed_minutes / config.max_minutes)
    left = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    return config.lr_end + (config.lr - config.lr_end) * left


@dataclass(frozen=True)
class Due:
    """What is due after an update."""

    validation: bool
    checkpoint: bool
    scheduled: bool
    """Whether it is due by updates or epochs: every run of the recipe has this checkpoint."""
    is_last: bool
    """Whether this is the last update."""
    finished: bool
    """Whether the run is finished, including the final validation and averaging."""


def due(config: TrainingConfig, state: RunState) -> Due:
    """Return what is due after the update that the state describes."""
    minutes = state.minutes - state.minutes_at_checkpoint
    every = config.checkpoint_every_minutes
    scheduled = _is_multiple(state, config.checkpoint_every, config.checkpoint_every_epochs)
    validated = state.validated == state.step
    averaged = config.average_last <= 1 or state.averaged == state.step
    is_last = (
        state.step >= config.max_steps
        or (config.max_minutes is not None and state.minutes >= config.max_minutes)
        or (config.patience is not None and state.validations_since_best >= config.patience)
    )
    return Due(
        validation=not validated
        and _is_multiple(state, config.validate_every, config.validate_every_epochs),
        checkpoint=scheduled or (every is not None and minutes >= every),
        scheduled=scheduled,
        is_last=is_last,
        finished=state.step > 0 and is_last and validated and averaged,
    )


def _is_multiple(state: RunState, every: int | None, every_epochs: int | None) -> bool:
    """Return whether an interval of updates or epochs ends with this update."""
    epoch_ended = state.offset == 0 and state.epoch > 0
    return state.step > 0 and bool(
        (every and state.step % every == 0)
        or (every_epochs and epoch_ended and state.epoch % every_epochs == 0)
    )


def minutes_left(config: TrainingConfig, state: RunState, minutes_per_update: float) -> float:
    """Return the remaining time of a run at this speed."""
    left = minutes_per_update * (config.max_steps - state.step)
    if config.max_minutes is None:
        return left
    return max(0.0, min(left, config.max_minutes - state.minutes))


class Forecast:
    """The speed of the first updates, the expected end, and what would make the run faster."""

    def __init__(
        self,
        training: TrainingConfig,
        state: RunState,
        alone_on_cpu: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """alone_on_cpu: whether the run has one process, on a CPU."""
        self._training, self._state, self._clock = training, state, clock
        self._alone_on_cpu = alone_on_cpu
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
        # Imported late, as torch is below: `runs` reads what is due without rich.
        from seq2seq.progress_bar import duration

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
        if not self._alone_on_cpu:
            return
        import torch

        from seq2seq.machine.precision import resolve_precision

        precision, cpu = self._training.precision, torch.device("cpu")
        if precision in ("bf16", "fp16") and resolve_precision("auto", cpu) == "fp32":
            yield f"this processor is slower in {precision}: set training.precision=auto"
        busy, cores, fixed = self.load.cores(), usable_cores(), threads_fixed_by()
        if busy >= 0.5:
            yield f"other programs use {busy:.1f} of the {cores} cores: end them"
        if fixed and torch.get_num_threads() + busy < cores - 0.5:
            yield f"{fixed} leaves cores unused: unset it to have their number chosen"
