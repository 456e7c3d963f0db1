"""Panel or progress lines, metrics.jsonl and TensorBoard of a run."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from seq2seq.config import TrainingConfig
from seq2seq.errors import UserError
from seq2seq.files import atomic_file
from seq2seq.progress_bar import ProgressBar, duration, on_terminal
from seq2seq.training.panel import TrainingPanel
from seq2seq.training.records import METRICS_FILE, read_metrics
from seq2seq.training.state import RunState

logger = logging.getLogger(__name__)

SHOWN = {
    "nll": 2, "perplexity": 2, "bleu": 2, "chrf": 2, "bits_per_character": 3, "stride": 0,
    "accuracy": 2, "initial_nll": 2, "initial_bleu": 2, "initial_bits_per_character": 3,
    "initial_accuracy": 2,
}  # fmt: skip
"""Metrics of a validation that are shown, with the number of decimals."""


class Monitor:
    """A panel on a terminal, else lines; metrics.jsonl, and TensorBoard if enabled."""

    def __init__(
        self, run: Path, accelerator: Accelerator, *, done: RunState, config: TrainingConfig
    ) -> None:
        self._accelerator = accelerator
        self._metrics = run / METRICS_FILE
        if accelerator.is_main_process:
            _forget_after(self._metrics, done)
        visible = accelerator.is_main_process
        self._lines = ProgressBar(None, visible=visible, wait=False)
        self._panel: TrainingPanel | None = None
        if visible and on_terminal():
            self._panel = TrainingPanel(str(run), config.max_steps, config.best_by)
            for record in read_metrics(run)[0]:
                if record["kind"] == "validation":
                    self._panel.validation(record["step"], record)
            if done.step:
                self._panel.checkpoint(done.step)
                self._panel.advance(done.step)

    def __enter__(self) -> Monitor:
        if self._panel:
            self._panel.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._panel:
            self._panel.__exit__(*error)

    def advance(self, step: int) -> None:
        """Show the number of updates."""
        if self._panel:
            self._panel.advance(step)

    def checkpoint(self, step: int) -> None:
        """Show that a checkpoint of this update is being written."""
        if self._panel:
            self._panel.checkpoint(step)

    def training(self, step: int, minutes_left: float, metrics: dict[str, float]) -> None:
        """Show and record one log step."""
        if self._panel:
            self._panel.training(minutes_left, metrics)
        else:
            self._lines.show(
                f"update {step}  loss {metrics['loss']:.3f}  {metrics['tokens_per_second']:,.0f} "
                f"tokens/s  (MFU {metrics['mfu']:.0%})  lr {metrics['lr']:.2e}  "
                f"{duration(minutes_left)} left"
            )
        self._record("train", step, metrics)

    def validation(
        self, step: int, metrics: dict[str, float], *, best: bool, kind: str = "validation"
    ) -> None:
        """Show and record one validation, of the model or of an average."""
        shown = "  ".join(
            f"{name.replace('_', ' ')} {metrics[name]:.{digits}f}"
            for name, digits in SHOWN.items() if name in metrics
        )  # fmt: skip
        if self._panel and kind == "validation":
            self._panel.validation(step, metrics)
        logger.info("update %d  %s: %s%s", step, kind, shown, "  (best)" if best else "")
        self._record(kind, step, metrics | {"best": float(best)})

    def _record(self, kind: str, step: int, metrics: dict[str, float]) -> None:
        if not self._accelerator.is_main_process:
            return
        line = json.dumps({"kind": kind, "step": step, **metrics})
        try:
            with self._metrics.open("a", encoding="utf-8") as stream:
                stream.write(line + "\n")
        except OSError as error:
            raise UserError(f"{self._metrics} could not be written: {error.strerror}") from None
        self._accelerator.log({f"{kind}/{name}": v for name, v in metrics.items()}, step=step)


def _forget_after(path: Path, done: RunState) -> None:
    """Drop the lines that a resumed run will write again, and one that a crash truncated."""
    if not path.exists():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if _is_done(line, done)]
    if len(kept) < len(lines):
        with atomic_file(path) as stream:
            stream.write(b"".join(kept))


def _is_done(line: bytes, done: RunState) -> bool:
    """Return whether to keep a line: it is not written again, or is not one of this run's."""
    if not line.endswith(b"\n"):
        return False
    try:
        record = json.loads(line)
        step, kind = record["step"], record["kind"]
        last = {"validation": done.validated, "average": done.averaged}.get(kind, done.step)
        return bool(step <= min(last, done.step))
    except (ValueError, KeyError, TypeError, RecursionError):  # not ours to remove
        return True
