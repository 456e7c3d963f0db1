"""What a run measures and shows: loss and speed, in a live panel on a terminal or in lines.

The same metrics go to metrics.jsonl and TensorBoard.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich import progress_bar
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from seq2seq.config import Config, TrainingConfig
from seq2seq.data.training_data import Update
from seq2seq.machine.precision import Precision, peak_matmul_flops, widest_float
from seq2seq.processes import Processes
from seq2seq.progress_bar import ProgressBar, duration, on_terminal
from seq2seq.task import load_task
from seq2seq.training.checkpoint import RunState, Totals
from seq2seq.training.records import (
    INITIAL,
    METRICS,
    forget_after,
    metric_name,
    read_metrics,
    record_metrics,
)
from seq2seq.training.update import Result

logger = logging.getLogger(__name__)

BARS = "▁▂▃▄▅▆▇█"
SHOWN_SCORES = 40
"""Number of validations in the sparkline."""


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
        self._peak_flops: float | None = None
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
        """Measure the FLOP/s that MFU is relative to; restarts the clock.

        Not on a CPU: other programs share it, so that every measurement is another.
        """
        if self._device.type != "cpu":
            own = peak_matmul_flops(self._device, self._precision)
            [self._peak_flops] = self._processes.all_reduce_sum(own)
            self.restart_clock()

    def finish(self) -> dict[str, float]:
        """Return the metrics over all processes since they were last logged; reset the sums."""
        total = self.totals()
        self.clear()
        source, counted = total.real_tokens, total.real_tokens
        if self._label_is_token:
            source, counted = total.real_tokens - total.labels, total.labels
        trained = total.trained_labels or math.nan
        metrics = {
            "loss": total.loss / trained,
            "nll": total.nll / trained,
            "lr": total.lr,
            "gradient_norm": total.gradient_norms / (total.made_updates or math.nan),
            "tokens_per_second": counted / total.seconds,
            "tokens_per_update": counted / total.updates,
            "non_padding_fraction": total.real_tokens / total.tokens_with_padding,
        }
        if self._peak_flops is not None:
            flops = self._flops(source, total.labels) / total.seconds
            metrics["mfu"] = flops / self._peak_flops
        return metrics


class TrainingLog:
    """Shows and records the metrics of a run.

    The panel has loss, scores, speed, memory, time left and last checkpoint; the lines of the log
    appear above it.
    """

    def __init__(
        self, run: Path, accelerator: Accelerator, state: RunState, config: TrainingConfig
    ) -> None:
        """state: that of the run, which says how far it is; metrics.jsonl is continued from it."""
        self._run, self._accelerator, self._state, self._config = run, accelerator, state, config
        visible = accelerator.is_main_process
        if visible:
            forget_after(run, state)
        self._metrics: dict[str, float] = {}
        self._minutes_left = math.nan
        self._scores: list[tuple[int, float]] = []
        self._checkpoint = state.step or None
        self._lines = ProgressBar(None, visible=visible, wait=False)
        self._live: Live | None = None
        if visible and on_terminal():
            self._live = Live(
                console=Console(stderr=True), transient=True, get_renderable=self.render,
                refresh_per_second=2,
            )  # fmt: skip
            for record in read_metrics(run)[0]:
                if record["kind"] == "validation":
                    self._add_score(record["step"], record)

    def panel(self) -> AbstractContextManager[Any]:
        """Show the panel within this block, if there is a terminal for it."""
        return self._live or nullcontext()

    def training(self, minutes_left: float, metrics: dict[str, float]) -> None:
        """Show and record the metrics of training until this update."""
        self._minutes_left, self._metrics = minutes_left, metrics
        if not self._live:
            self._lines.show(
                f"update {self._state.step}  loss {metrics['loss']:.3f}  "
                f"{_speed(metrics)}  lr {metrics['lr']:.2e}  {duration(minutes_left)} left"
            )
        self._record("train", metrics)

    def validation(
        self, metrics: dict[str, float], *, best: bool, kind: str = "validation"
    ) -> None:
        """Show and record one validation, of the model or of an average."""
        shown = "  ".join(
            f"{metric_name(prefix + name)} {metrics[prefix + name]:.{metric.digits}f}"
            for prefix in ("", INITIAL)
            for name, metric in METRICS.items()
            if metric.digits is not None and prefix + name in metrics
        )
        if kind == "validation":
            self._add_score(self._state.step, metrics)
        logger.info(
            "update %d  %s: %s%s", self._state.step, kind, shown, "  (best)" if best else ""
        )
        self._record(kind, metrics | {"best": float(best)})

    def checkpoint(self) -> None:
        """Show that a checkpoint of this update is being written."""
        self._checkpoint = self._state.step

    def _record(self, kind: str, metrics: dict[str, float]) -> None:
        if self._accelerator.is_main_process:
            record_metrics(self._run, kind, self._state.step, metrics)
            by_name = {f"{kind}/{name}": value for name, value in metrics.items()}
            self._accelerator.log(by_name, step=self._state.step)

    def _add_score(self, step: int, metrics: dict[str, float]) -> None:
        if self._config.best_by in metrics:
            self._scores.append((step, metrics[self._config.best_by]))

    def render(self) -> Panel:
        """Return the panel as it is now."""
        found, rows = self._metrics, Table.grid(padding=(0, 2))
        rows.add_column(style="dim")
        rows.add_column()
        if found:
            rows.add_row("loss", f"{found['loss']:.3f}   learning rate {found['lr']:.2e}")
        if self._scores:
            rows.add_row(f"dev {metric_name(self._config.best_by)}", self._score_line())
        if found:
            rows.add_row("speed", f"{_speed(found)}  memory {found['memory_gib']:.1f} GiB")
        saved = "none yet" if self._checkpoint is None else f"update {self._checkpoint:,}"
        rows.add_row("checkpoint", saved)
        head = Table.grid(padding=(0, 2), expand=True)
        head.add_column(no_wrap=True)
        head.add_column(ratio=1)
        head.add_column(no_wrap=True)
        left = "" if math.isnan(self._minutes_left) else f"{duration(self._minutes_left)} left"
        # rich draws a full bar in the colour of an empty one
        bar = progress_bar.ProgressBar(
            total=1.0, completed=self._share(), finished_style="bar.complete"
        )
        head.add_row(f"update {self._state.step:,}", bar, left)
        return Panel(Group(head, rows), title=Text(str(self._run)), title_align="left")

    def _share(self) -> float:
        """Return the finished share of the run, by updates or by time."""
        minutes = self._metrics.get("minutes", 0.0)
        by_time = 0.0
        if minutes and not math.isnan(self._minutes_left):
            by_time = minutes / (minutes + self._minutes_left)
        return max(by_time, self._state.step / max(1, self._config.max_steps))

    def _score_line(self) -> str:
        values = [value for _, value in self._scores if not math.isnan(value)]
        _, last = self._scores[-1]
        if not values:
            return f"{last}"
        best = (min if self._config.best_by == "nll" else max)(values)
        at = next(step for step, value in self._scores if value == best)
        return f"{last:.2f}   best {best:.2f} at update {at:,}   {sparkline(values)}"


def _speed(metrics: dict[str, float]) -> str:
    """Return tokens per second and, where its peak is known, MFU."""
    mfu = f"  MFU {metrics['mfu']:.0%}" if "mfu" in metrics else ""
    return f"{metrics['tokens_per_second']:,.0f} tokens/s{mfu}"


def sparkline(values: Sequence[float]) -> str:
    """Return the last values as a line of bars."""
    shown = list(values)[-SHOWN_SCORES:]
    low, high = min(shown), max(shown)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in shown)


def summary(config: Config, run: Path, state: RunState) -> str:
    """Return the best model and its score, updates and time, and the next three commands."""
    by = config.training.best_by
    lines = []
    if state.best and state.best_score is not None:
        score = -state.best_score if by == "nll" else state.best_score
        update = state.best.rpartition("_")[2]
        kind = "the average of checkpoints" if "average" in state.best else f"update {update}"
        lines.append(
            f"best model: {run / 'best'}, {metric_name(by)} {score:.2f} on the development set, "
            f"{kind}"
        )
    lines += _forgetting(config, run, state)
    lines.append(f"cost: {state.step:,} updates in {duration(state.minutes)}")
    lines += [
        "next:",
        f"  seq2seq evaluate {run}",
        f"  seq2seq {load_task(config.task).use.format(run=run)}",
        f"  seq2seq report {run}",
    ]
    return "\n".join(lines)


def _forgetting(config: Config, run: Path, state: RunState) -> list[str]:
    """Return the scores of the initial model and of the best one, on both development sets."""
    by = config.training.best_by
    validations = [each for each in read_metrics(run)[0] if each["kind"] != "train"]
    first = next((each for each in validations if each["step"] == 0), {})
    best = next((each for each in reversed(validations) if each.get("best")), {})
    if f"{INITIAL}{by}" not in first or f"{INITIAL}{by}" not in best:
        return []
    sets = {"this development set": by, f"that of {config.training.init_from}": f"{INITIAL}{by}"}
    return [
        f"on {name}: {metric_name(by)} {first[key]:.2f} before, {best[key]:.2f} now "
        f"({best[key] - first[key]:+.2f})"
        for name, key in sets.items()
    ]
