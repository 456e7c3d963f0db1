"""Loss and speed of training: sums until they are logged; the forecast of the run's end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from seq2seq.config import TrainingConfig
from seq2seq.data.training_data import Update
from seq2seq.machine.precision import (
    Precision,
    peak_matmul_flops,
    resolve_precision,
    widest_float,
)
from seq2seq.machine.threads import OtherLoad, threads_fixed_by, usable_cores
from seq2seq.processes import Processes
from seq2seq.progress_bar import duration
from seq2seq.training.checkpoint import RunState, Totals
from seq2seq.training.schedule import minutes_left
from seq2seq.training.update import Result

SOON, LATEST = 10.0, 20.0
"""Seconds of training after which the forecast is made, and by which it must be made."""
SHORTEST_WARMUP = 100
"""Updates. A tenth of a run is a usual warm-up, but one of fewer updates helps no run."""


class TrainingMetrics:
    """Sums since they were last logged; loss and nll stay on the device until they are read."""

    def __init__(
        self,
        device: torch.device,
        precision: Precision,
        processes: Processes,
        flops: Callable[[int, int], float],
        label_is_token: bool,
    ) -> None:
        """flops: floating-point operations of training on this many source and target tokens.

        label_is_token: count labels as tokens for the speed, else all tokens of the input.
        """
        self._device, self._precision, self._processes = device, precision, processes
        self._flops, self._label_is_token = flops, label_is_token
        self._peak_flops = math.inf
        """FLOP/s of matrix products on all processes together, the peak that MFU is relative to."""
        self.clear()

    @property
    def num_updates(self) -> int:
        """Number of updates since metrics were last logged."""
        return self._host.updates

    def clear(self) -> None:
        """Reset all sums."""
        self._sums = torch.zeros(5, dtype=widest_float(self._device), device=self._device)
        """[loss, nll, labels, gradient norms, updates] without skipped updates: loss and nll of
        this process, the others of all."""
        self._host = Totals()
        """The other sums; tokens with padding only of this process."""
        self._running_since = time.monotonic()

    def add(self, update: Update, result: Result, lr: float) -> None:
        """Add an update and its result, whose sums are ignored if it was skipped."""
        labels, one = (self._sums.new_full((1,), x) for x in (update.num_labels, 1))
        norm = result.gradient_norm.reshape(1).to(self._sums)
        added = torch.cat([result.sums.to(self._sums), labels, norm, one])
        self._sums += torch.where(result.outcome.bool(), 0, added)
        host = self._host
        host.tokens_with_padding += sum(batch.num_tokens for batch in update.batches)
        host.labels += update.num_labels
        host.real_tokens += update.num_real_tokens
        host.updates += 1
        host.lr = lr

    def restart_clock(self) -> None:
        """Exclude the time since the sums were last read from the speed."""
        self._running_since = time.monotonic()

    def totals(self) -> Totals:
        """Return the sums over all processes, for a checkpoint."""
        loss, nll, trained, norms, made = self._sums.tolist()  # synchronises with the GPU
        self._host.seconds += time.monotonic() - self._running_since
        self._running_since = time.monotonic()
        loss, nll, with_padding = self._processes.all_reduce_sum(
            loss, nll, self._host.tokens_with_padding
        )
        return replace(
            self._host,
            loss=loss,
            nll=nll,
            trained_labels=trained,
            gradient_norms=norms,
            made_updates=made,
            tokens_with_padding=int(with_padding),
        )

    def restore(self, totals: Totals) -> None:
        """Restore the sums of a checkpoint; the main process takes those of all processes."""
        share = 1 if self._processes.is_main else 0
        sums = [
            totals.loss * share, totals.nll * share, totals.trained_labels, totals.gradient_norms,
            totals.made_updates,
        ]  # fmt: skip
        self._sums.copy_(torch.tensor(sums, dtype=torch.float64))
        self._host = replace(totals, tokens_with_padding=totals.tokens_with_padding * share)

    def measure_peak(self) -> None:
        """Measure the FLOP/s that MFU is relative to; restarts the clock."""
        [peak] = self._processes.all_reduce_sum(peak_matmul_flops(self._device, self._precision))
        self._peak_flops = peak
        self.restart_clock()

    def finish(self) -> dict[str, float]:
        """Return the metrics over all processes since they were last logged; reset the sums."""
        total = self.totals()
        self.clear()
        source, counted = total.real_tokens, total.real_tokens
        if self._label_is_token:
            source, counted = total.real_tokens - total.labels, total.labels
        trained = total.trained_labels or math.nan
        flops = self._flops(source, total.labels) / total.seconds
        self._keep_below_peak(flops)
        return {
            "loss": total.loss / trained,
            "nll": total.nll / trained,
            "lr": total.lr,
            "gradient_norm": total.gradient_norms / (total.made_updates or math.nan),
            "tokens_per_second": counted / total.seconds,
            "mfu": flops / self._peak_flops,
            "tokens_per_update": counted / total.updates,
            "non_padding_fraction": total.real_tokens / total.tokens_with_padding,
        }

    def _keep_below_peak(self, flops: float) -> None:
        """Measure the peak again if it was passed: other programs slowed down its measurement.

        What the run itself reaches is a lower bound of it.
        """
        [reached] = self._processes.all_reduce_max(flops)
        if reached > self._peak_flops:
            self.measure_peak()
            self._peak_flops = max(self._peak_flops, reached)


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
