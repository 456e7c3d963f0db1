"""Skip, count and report updates with a non-finite gradient, without waiting for the device."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor, nn

from seq2seq.data.training_data import TrainingData, Update
from seq2seq.errors import SharedError
from seq2seq.files import write_text
from seq2seq.processes import Processes
from seq2seq.training.run_directory import RunDirectory
from seq2seq.training.state import RunState

UpdatePosition = tuple[int, int, int, int]
"""Number, epoch, offset and number of sentences of an update."""

logger = logging.getLogger(__name__)


class Outcome(IntEnum):
    """What became of an update."""

    MADE = 0
    NOT_FINITE = 1
    """Skipped, since its gradient was not finite."""
    OVERFLOW = 2
    """Skipped, since its gradient, multiplied by the loss scale, exceeded fp16."""


def clip_gradient(
    parameters: Sequence[nn.Parameter], clip_norm: float | None
) -> tuple[Tensor, Tensor]:
    """Clip the gradients in place; return their norm before, and 1 if it is not finite, else 0.

    Both are scalars on the device.
    """
    if clip_norm is None:
        grads = [p.grad for p in parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads)
    else:
        norm = torch.nn.utils.clip_grad_norm_(parameters, clip_norm)
    return norm, 1 - torch.isfinite(norm).float()


class FiniteCheck:
    """Counts skipped updates; the host reads the outcomes only on request.

    All processes have the same, since they have the same summed gradient.
    """

    def __init__(
        self,
        max_consecutive: int,
        state: RunState,
        data: TrainingData,
        directory: RunDirectory,
        processes: Processes,
    ) -> None:
        """state: that of the run, in which skipped updates are counted."""
        self._max_consecutive, self._state, self._data = max_consecutive, state, data
        self._directory, self._processes = directory, processes
        self._unread: list[tuple[Tensor, UpdatePosition]] = []
        self._consecutive: list[UpdatePosition] = []
        """Skipped updates since the last one that was not."""

    def note(self, outcome: Tensor, step: int, update: Update) -> None:
        """Store the outcome of an update, a scalar, without reading it."""
        position = (step, update.epoch, update.offset, update.num_sentences)
        self._unread.append((outcome, position))

    def read(self) -> None:
        """Read the outcomes and count skipped updates; raises SharedError for too many in a row.

        Overflows of fp16 are counted apart: the loss scale falls, and the run goes on.
        """
        if not self._unread:
            return
        outcomes = torch.stack([outcome for outcome, _ in self._unread]).tolist()
        noted, self._unread = self._unread, []
        state, before = self._state, self._state.skipped
        for outcome, (_, position) in zip(outcomes, noted, strict=True):
            if state.consecutive_skips >= self._max_consecutive:
                break
            if outcome == Outcome.OVERFLOW:
                state.overflows += 1
            elif outcome == Outcome.NOT_FINITE:
                state.skipped += 1
                state.consecutive_skips += 1
                self._consecutive.append(position)
            else:
                self._consecutive, state.consecutive_skips = [], 0
        if state.skipped > before:
            logger.warning(
                "%d updates up to update %d were skipped because of non-finite gradients",
                state.skipped - before,
                state.step,
            )
        if state.consecutive_skips >= self._max_consecutive:
            self._fail()

    def _fail(self) -> NoReturn:
        path = self._directory.path / "not_finite.json"
        if self._processes.is_main:
            self._write_report(path)
        self._directory.wait()
        self._processes.barrier()
        raise SharedError(
            f"the gradient was not finite in {self._state.consecutive_skips} consecutive updates, "
            f"up to update {self._state.step} or shortly before; their sentences are in {path}. "
            "Start a new run with a lower training.lr, a longer training.warmup_steps or "
            "training.clip_norm=1 (training.init_from starts it from a checkpoint's weights); "
            f"{self._directory.describe_last()}"
        )

    def _write_report(self, path: Path) -> None:
        """Write the sentences of the skipped updates since this process started."""
        report = []
        for step, epoch, offset, num_sentences in self._consecutive:
            numbers = self._data.order(epoch)[offset : offset + num_sentences]
            report.append({
                "update": step,
                "epoch": epoch,
                "offset": offset,
                "sentences": numbers.tolist(),
                **self._data.examples.describe(numbers),
            })  # fmt: skip
        text = json.dumps(report, indent=1, ensure_ascii=False)
        write_text(path, text + "\n")
