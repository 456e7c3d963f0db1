"""Skip, count and report updates with a non-finite gradient, without waiting for the device."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from seq2seq.data.stream import TrainingData, Update
from seq2seq.training.state import RunState

Position = tuple[int, int, int, int]
"""Number, epoch, offset and number of sentences of an update."""


def clip_gradient(parameters: Sequence[nn.Parameter], clip_norm: float | None) -> Tensor:
    """Clip the gradient's norm; return 1, on the device, if it is not finite, else 0."""
    if clip_norm is None:
        grads = [p.grad for p in parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads)
    else:
        norm = torch.nn.utils.clip_grad_norm_(parameters, clip_norm)
    return 1 - torch.isfinite(norm).float()


class FiniteCheck:
    """Counts skipped updates; the host reads the flags only on request.

    All processes have the same flags, since they have the same summed gradient.
    """

    def __init__(self, max_in_row: int, state: RunState) -> None:
        """state: that of the run, in which skipped updates are counted."""
        self._max_in_row, self._state = max_in_row, state
        self._unread: list[tuple[Tensor, Position]] = []
        self._row: list[Position] = []
        """Skipped updates since the last one that was not."""

    def note(self, skip: Tensor, step: int, update: Update) -> None:
        """Store the flag of an update without reading it."""
        position = (step, update.epoch, update.offset, update.num_sentences)
        self._unread.append((skip, position))

    def read(self) -> bool:
        """Read the flags; return False if too many consecutive updates were skipped."""
        if not self._unread:
            return True
        flags = torch.stack([skip for skip, _ in self._unread]).tolist()
        noted, self._unread = self._unread, []
        for skipped, (_, position) in zip(flags, noted, strict=True):
            if not skipped:
                self._row, self._state.skipped_in_row = [], 0
                continue
            self._state.skipped += 1
            self._state.skipped_in_row += 1
            self._row.append(position)
            if self._state.skipped_in_row >= self._max_in_row:
                return False
        return True

    def write_report(self, path: Path, data: TrainingData) -> None:
        """Write the sentences of the consecutive skipped updates, as numbers and text."""
        report = []
        for step, epoch, offset, num_sentences in self._row:
            numbers = data.order(epoch)[offset : offset + num_sentences]
            report.append({
                "update": step,
                "epoch": epoch,
                "offset": offset,
                "sentences": numbers.tolist(),
                **data.examples.describe(numbers),
            })  # fmt: skip
        text = json.dumps(report, indent=1, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")
