"""What a run shows: metrics in a progress bar on a terminal or in lines, and a summary at its end.

The same metrics go to metrics.jsonl and TensorBoard.
"""

from __future__ import annotations

import logging
from pathlib import Path

from accelerate import Accelerator

from seq2seq.config import Config
from seq2seq.progress_bar import ProgressBar, duration
from seq2seq.task import load_task
from seq2seq.training.checkpoint import RunState
from seq2seq.training.records import METRICS, forget_after, metric_name, record_metrics

logger = logging.getLogger(__name__)


class TrainingLog:
    """Shows and records the metrics of a run."""

    def __init__(self, run: Path, accelerator: Accelerator, state: RunState) -> None:
        """state: how far the run is; metrics.jsonl is continued from there."""
        self._run, self._accelerator, self._state = run, accelerator, state
        if accelerator.is_main_process:
            forget_after(run, state)
        self.bar = ProgressBar(None, visible=accelerator.is_main_process, wait=False)
        """Progress bar, to be used in a `with` statement around the training."""

    def training(self, minutes_left: float, metrics: dict[str, float]) -> None:
        """Show and record the metrics of training until this update."""
        self.bar.show(
            f"update {self._state.step}  loss {metrics['loss']:.3f}  "
            f"{metrics['tokens_per_second']:,.0f} tokens/s  lr {metrics['lr']:.2e}  "
            f"{duration(minutes_left)} left"
        )
        self._record("train", metrics)

    def validation(
        self, metrics: dict[str, float], *, best: bool, kind: str = "validation"
    ) -> None:
        """Show and record one validation, of the model or of an average."""
        shown = "  ".join(
            f"{metric_name(name)} {metrics[name]:.{metric.digits}f}"
            for name, metric in METRICS.items()
            if metric.digits is not None and name in metrics
        )
        logger.info(
            "update %d  %s: %s%s", self._state.step, kind, shown, "  (best)" if best else ""
        )
        self._record(kind, metrics | {"best": float(best)})

    def _record(self, kind: str, metrics: dict[str, float]) -> None:
        if self._accelerator.is_main_process:
            record_metrics(self._run, kind, self._state.step, metrics)
            by_name = {f"{kind}/{name}": value for name, value in metrics.items()}
            self._accelerator.log(by_name, step=self._state.step)


def summary(config: Config, run: Path, state: RunState) -> str:
    """Return the best model and its score, updates and time, and the next three commands."""
    by = config.training.best_by
    lines = []
    if state.best and state.best_score is not None:
        score = -state.best_score if by == "nll" else state.best_score
        name = state.best.rpartition("_")[2]
        origin = "the average of checkpoints" if "average" in state.best else f"update {name}"
        place = f"{metric_name(by)} {score:.2f} on the development set, {origin}"
        lines.append(f"best model: {run / 'best'}, {place}")
    return "\n".join(
        [
            *lines,
            f"cost: {state.step:,} updates in {duration(state.minutes)}",
            "next:",
            f"  seq2seq evaluate {run}",
            f"  seq2seq {load_task(config.task).use.format(run=run)}",
            f"  seq2seq report {run}",
        ]
    )
