"""Gradients that are not finite: their updates are skipped on the device, counted and reported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from seq2seq.data.stream import TrainingData, Update

Place = tuple[int, int, int, int]
"""An update's number, its epoch, its offset there, and how many sentences it has."""


def clip_and_judge(parameters: Sequence[nn.Parameter], clip_norm: float | None) -> Tensor:
    """Clip the gradient's norm; return 1 if the gradient is not finite, else 0."""
    if clip_norm is None:
        grads = [p.grad for p in parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads)
    else:
        norm = torch.nn.utils.clip_grad_norm_(parameters, clip_norm)
    return 1 - torch.isfinite(norm).float()


class FiniteCheck:
    """Counts the updates skipped; the host reads the verdicts only when it asks for them.

    A loss that is not finite has no finite gradient, and the gradient is the sum of all processes':
    they judge alike.
    """

    def __init__(self, max_in_row: int) -> None:
        self._max_in_row = max_in_row
        self._unread: list[tuple[Tensor, Place]] = []
        self._row: list[Place] = []
        """Of the last updates, if they were skipped."""
        self.skipped = 0
        """Updates skipped in all, as far as read."""
        self.in_row = 0
        """Updates skipped in a row, up to the last one read."""

    def note(self, skip: Tensor, step: int, update: Update) -> None:
        """Remember an update's verdict, unread."""
        place = (step, update.epoch, update.offset, update.num_sentences)
        self._unread.append((skip, place))

    def read(self) -> bool:
        """Read the verdicts; return False if too many updates in a row were skipped."""
        if not self._unread:
            return True
        verdicts = torch.stack([skip for skip, _ in self._unread]).tolist()
        noted, self._unread = self._unread, []
        for verdict, (_, place) in zip(verdicts, noted, strict=True):
            if not verdict:
                self._row, self.in_row = [], 0
                continue
            self.skipped += 1
            self.in_row += 1
            self._row.append(place)
            if self.in_row >= self._max_in_row:
                return False
        return True

    def write_report(self, path: Path, data: TrainingData) -> None:
        """Write the sentences of the updates skipped in a row, as numbers and as text."""
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
