"""Sum the results of updates, show and record metrics, and summarise a run at its end.

Metrics are shown in a progress bar or as lines, and recorded in metrics.jsonl and TensorBoard.
"""

from __future__ import annotations

import logging
import math
import time
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from seq2seq.config import Config, TrainingConfig
from seq2seq.machine.devices import memory_in_use
from seq2seq.processes import Processes
from seq2seq.terminal import ProgressBar, aligned, duration
from seq2seq.training.records import (
    METRICS,
    direction_rows,
    drop_metrics_after,
    metric_name,
    record_metrics,
)
from seq2seq.training.run_directory import RunState, Totals
from seq2seq.training.schedule import minutes_left
from seq2seq.training.update import Updater

NEXT = {
    "translation": "translate {run} < FILE",
    "language_model": "generate {run} --prompt TEXT",
    "classification": "classify {run} < FILE",
}
"""Command that uses the trained model of a task."""

logger = logging.getLogger(__name__)


class TrainingLog:
    """Sums the results of updates in the state of a run, and shows and records metrics.

    The host reads results only for logs and checkpoints, so that it does not wait for a GPU after
    each update. Sums over all processes are added update by update, so that they do not depend on
    the time of reading.
    """

    def __init__(
        self,
        run: Path,
        config: TrainingConfig,
        state: RunState,
        updater: Updater,
        processes: Processes,
    ) -> None:
        """state: metrics.jsonl is continued after its last update."""
        self._run, self._config, self._state = run, config, state
        self._updater, self._processes = updater, processes
        self._unread: list[tuple[Tensor, int]] = []
        """Results of `Updater.update`, with the number of labels over all processes."""
        if processes.is_main:
            drop_metrics_after(
                run, train=state.step, validation=state.validated, average=state.averaged
            )
        self.bar = ProgressBar(None, visible=processes.is_main, wait=False)
        """Progress bar; a context manager to be entered during training."""
        self.restart_clock()

    def restart_clock(self) -> None:
        """Exclude the time since the last reading from the throughput."""
        self._running_since = time.monotonic()

    def add(self, result: Tensor, labels: int, tokens: int, lr: float) -> None:
        """Count an update and store its result, without reading it from the device."""
        totals = self._state.totals
        totals.tokens += tokens
        totals.updates += 1
        totals.lr = lr
        self._unread.append((result, labels))

    def read(self) -> None:
        """Read all results and add them to the state; a collective operation.

        The losses of skipped updates do not count, and counting stops after `max_skipped`
        consecutive ones. fp16 overflows do not count as skipped: the loss scale is lowered and
        training continues.
        """
        state, totals, skipped_before = self._state, self._state.totals, self._state.skipped
        totals.seconds += time.monotonic() - self._running_since
        self.restart_clock()
        unread, self._unread = self._unread, []
        if not unread:
            return
        results = torch.stack([result for result, _ in unread]).tolist()
        sums = iter(self._processes.all_reduce(*chain(*(result[:2] for result in results))))
        for (*_, norm, loss_scale), (_, num_labels) in zip(results, unread, strict=True):
            loss, nll = next(sums), next(sums)
            if state.consecutive_skips >= self._config.max_skipped:
                break
            if math.isfinite(norm):
                state.consecutive_skips = 0
                totals.loss += loss
                totals.nll += nll
                totals.trained_labels += num_labels
                totals.gradient_norms += norm
                totals.applied_updates += 1
            elif loss_scale > 1:
                state.overflows += 1
            else:
                state.skipped += 1
                state.consecutive_skips += 1
        if new := state.skipped - skipped_before:
            text = "skipped updates with a non-finite gradient: %d (up to update %d)"
            logger.warning(text, new, state.step)

    def training(self) -> None:
        """Show and record means over the updates since the last call, and reset their sums."""
        state, total, scaler = self._state, self._state.totals, self._updater.scaler
        state.totals = Totals()
        trained = total.trained_labels or math.nan
        metrics = {
            "loss": total.loss / trained,
            "nll": total.nll / trained,
            "lr": total.lr,
            "gradient_norm": total.gradient_norms / (total.applied_updates or math.nan),
            "tokens_per_second": total.tokens / total.seconds,
            "tokens_per_update": total.tokens / total.updates,
            "epoch": state.epoch,
            "minutes": state.minutes,
            "skipped": state.skipped,
            "threads": torch.get_num_threads(),
            "memory_gib": memory_in_use(self._updater.device) / 2**30,
        }
        if scaler.is_enabled():
            metrics |= {"overflows": state.overflows, "loss_scale": scaler.get_scale()}
        self.bar.show(
            f"update {state.step}  loss {metrics['loss']:.3f}  "
            f"{metrics['tokens_per_second']:,.0f} tokens/s  lr {metrics['lr']:.2e}  "
            f"{duration(minutes_left(self._config, state))} left"
        )
        self._record("train", metrics)

    def validation(
        self, metrics: dict[str, float], *, best: bool, kind: str = "validation"
    ) -> None:
        """Show and record a validation of the model, or of an average of checkpoints."""
        text = "  ".join(
            f"{metric_name(name)} {metrics[name]:.{metric.digits}f}"
            for name, metric in METRICS.items()
            if metric.digits is not None and name in metrics
        )
        mark = "  (best)" if best else ""
        logger.info("update %d  %s: %s%s", self._state.step, kind, text, mark)
        for line in aligned(direction_rows(metrics)):
            logger.info("  %s", line)
        self._record(kind, metrics | {"best": float(best)})

    def _record(self, kind: str, metrics: dict[str, float]) -> None:
        if self._processes.is_main:
            record_metrics(self._run, kind, self._state.step, metrics)
            by_name = {f"{kind}/{name}": value for name, value in metrics.items()}
            self._updater.accelerator.log(by_name, step=self._state.step)


def summary(config: Config, run: Path, state: RunState) -> str:
    """Return a text with the best model and its score, updates, time, and the next commands."""
    by, best = config.training.best_by, ""
    if state.best and state.best_score is not None:
        score = -state.best_score if by == "nll" else state.best_score
        name = state.best.rpartition("_")[2]
        origin = "the average of checkpoints" if "average" in state.best else f"update {name}"
        quality = f"{metric_name(by)} {score:.2f} on the development set, {origin}"
        best = f"best model: {run / 'best'}, {quality}\n"
    targets = config.pairs.targets if config.translates else []
    chosen = f"{run} --to {targets[0]}" if len(targets) > 1 else run
    return (
        f"{best}trained: {state.step:,} updates in {duration(state.minutes)}\n"
        "next:\n"
        f"  seq2seq evaluate {run}\n"
        f"  seq2seq {NEXT[config.task].format(run=chosen)}\n"
        f"  seq2seq report {run}"
    )
