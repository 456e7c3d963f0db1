"""What a run shows: metrics in a live panel on a terminal or in lines, and a summary at its end.

The same metrics go to metrics.jsonl and TensorBoard.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from seq2seq.config import Config, TrainingConfig
from seq2seq.progress_bar import ProgressBar, duration, on_terminal
from seq2seq.task import load_task
from seq2seq.training.checkpoint import RunState
from seq2seq.training.records import (
    INITIAL,
    METRICS,
    forget_after,
    metric_name,
    read_metrics,
    record_metrics,
)

logger = logging.getLogger(__name__)

BARS = "▁▂▃▄▅▆▇█"
SHOWN_SCORES = 40
"""Number of validations in the sparkline."""


class TrainingLog:
    """Shows and records the metrics of a run.

    The panel has loss, scores, speed, memory, time left and last checkpoint; the lines of the log
    appear above it.
    """

    def __init__(
        self, run: Path, accelerator: Accelerator, state: RunState, config: TrainingConfig
    ) -> None:
        """state: how far the run is; metrics.jsonl is continued from there."""
        self._run, self._accelerator, self._state, self._config = run, accelerator, state, config
        visible = accelerator.is_main_process
        if visible:
            forget_after(run, state)
        self._rows = {"update": f"{state.step:,}", "checkpoint": "none yet"}
        self._scores: list[tuple[int, float]] = []
        self._lines = ProgressBar(None, visible=visible, wait=False)
        self._live: Live | None = None
        if visible and on_terminal():
            console = Console(stderr=True)
            self._live = Live(
                console=console, transient=True, get_renderable=self.render, refresh_per_second=2
            )
            for record in read_metrics(run)[0]:
                if record["kind"] == "validation":
                    self._add_score(record["step"], record)

    def panel(self) -> AbstractContextManager[Any]:
        """Show the panel within this block, if there is a terminal for it."""
        return self._live or nullcontext()

    def render(self) -> Panel:
        """Return the panel as it is now."""
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim")
        for name, text in self._rows.items():
            table.add_row(name, text)
        return Panel(table, title=Text(str(self._run)), title_align="left")

    def training(self, minutes_left: float, metrics: dict[str, float]) -> None:
        """Show and record the metrics of training until this update."""
        step, loss, lr = self._state.step, metrics["loss"], metrics["lr"]
        speed, left = f"{metrics['tokens_per_second']:,.0f} tokens/s", duration(minutes_left)
        self._rows |= {
            "update": f"{step:,}  {left} left",
            "loss": f"{loss:.3f}  learning rate {lr:.2e}",
            "speed": f"{speed}  memory {metrics['memory_gib']:.1f} GiB",
        }
        if not self._live:
            self._lines.show(f"update {step}  loss {loss:.3f}  {speed}  lr {lr:.2e}  {left} left")
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
        self._rows["checkpoint"] = f"update {self._state.step:,}"

    def _record(self, kind: str, metrics: dict[str, float]) -> None:
        if self._accelerator.is_main_process:
            record_metrics(self._run, kind, self._state.step, metrics)
            by_name = {f"{kind}/{name}": value for name, value in metrics.items()}
            self._accelerator.log(by_name, step=self._state.step)

    def _add_score(self, step: int, metrics: dict[str, float]) -> None:
        """Show the last score, the best one and the course of all."""
        by = self._config.best_by
        if by not in metrics:
            return
        text = f"{metrics[by]:.2f}"
        if not math.isnan(metrics[by]):
            self._scores.append((step, metrics[by]))
        if self._scores:
            pick = min if by == "nll" else max
            best_step, best = pick(self._scores, key=lambda score: score[1])
            bars = sparkline([score for _, score in self._scores])
            text += f"  best {best:.2f} at update {best_step:,}  {bars}"
        self._rows[f"dev {metric_name(by)}"] = text


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
        name = state.best.rpartition("_")[2]
        origin = "the average of checkpoints" if "average" in state.best else f"update {name}"
        place = f"{metric_name(by)} {score:.2f} on the development set, {origin}"
        lines.append(f"best model: {run / 'best'}, {place}")
    return "\n".join(
        [
            *lines,
            *_forgetting(config, run),
            f"cost: {state.step:,} updates in {duration(state.minutes)}",
            "next:",
            f"  seq2seq evaluate {run}",
            f"  seq2seq {load_task(config.task).use.format(run=run)}",
            f"  seq2seq report {run}",
        ]
    )


def _forgetting(config: Config, run: Path) -> list[str]:
    """Return the scores of the initial model and of the best one, on both development sets."""
    by = config.training.best_by
    validations = [record for record in read_metrics(run)[0] if record["kind"] != "train"]
    first = next((record for record in validations if record["step"] == 0), {})
    best = next((record for record in reversed(validations) if record.get("best")), {})
    if f"{INITIAL}{by}" not in first or f"{INITIAL}{by}" not in best:
        return []
    sets = {"this development set": by, f"that of {config.training.init_from}": f"{INITIAL}{by}"}
    return [
        f"on {name}: {metric_name(by)} {first[key]:.2f} before, {best[key]:.2f} now "
        f"({best[key] - first[key]:+.2f})"
        for name, key in sets.items()
    ]
