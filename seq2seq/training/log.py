"""Show and record the metrics of a run, and summarise it at its end.

Metrics are shown in a progress bar or as lines, and recorded in metrics.jsonl and TensorBoard.
"""

from __future__ import annotations

import logging
from pathlib import Path

from accelerate import Accelerator

from seq2seq.config import Config
from seq2seq.progress_bar import ProgressBar, duration
from seq2seq.task import load_task
from seq2seq.training.checkpoint import RunState
from seq2seq.training.records import METRICS, drop_metrics_after, metric_name, record_metrics

logger = logging.getLogger(__name__)


class TrainingLog:
    """Shows and records the metrics of a run."""

    def __init__(self, run: Path, accelerator: Accelerator, state: RunState) -> None:
        """state: metrics.jsonl is continued after its last update."""
        self._run, self._accelerator, self._state = run, accelerator, state
        if accelerator.is_main_process:
            drop_metrics_after(run, state)
        self.bar = ProgressBar(None, visible=accelerator.is_main_process, wait=False)
        """Progress bar; a context manager to be entered during training."""

    def training(self, minutes_left: float, metrics: dict[str, float]) -> None:
        """Show and record training metrics."""
        self.bar.show(
            f"update {self._state.step}  loss {metrics['loss']:.3f}  "
            f"{metrics['tokens_per_second']:,.0f} tokens/s  lr {metrics['lr']:.2e}  "
            f"{duration(minutes_left)} left"
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
        self._record(kind, metrics | {"best": float(best)})

    def _record(self, kind: str, metrics: dict[str, float]) -> None:
        if self._accelerator.is_main_process:
            record_metrics(self._run, kind, self._state.step, metrics)
            by_name = {f"{kind}/{name}": value for name, value in metrics.items()}
            self._accelerator.log(by_name, step=self._state.step)


def summary(config: Config, run: Path, state: RunState) -> str:
    """Return a text with the best model and its score, updates, time, and the next commands."""
    by = config.training.best_by
    lines = []
    if state.best and state.best_score is not None:
        score = -state.best_score if by == "nll" else state.best_score
        name = state.best.rpartition("_")[2]
        origin = "the average of checkpoints" if "average" in state.best else f"update {name}"
        quality = f"{metric_name(by)} {score:.2f} on the development set, {origin}"
        lines.append(f"best model: {run / 'best'}, {quality}")
    return "\n".join(
        [
            *lines,
            f"trained: {state.step:,} updates in {duration(state.minutes)}",
            "next:",
            f"  seq2seq evaluate {run}",
            f"  seq2seq {load_task(config.task).use.format(run=run)}",
            f"  seq2seq report {run}",
        ]
    )
