"""Gradients that are not finite: their updates are skipped and counted, on the device."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from seq2seq.data.batching import TrainingData, Update


class FiniteCheck:
    """Judges every update's gradient; the host reads the counts only when it asks for them."""

    def __init__(self, device: torch.device, max_in_row: int) -> None:
        self._counts = torch.zeros(2, device=device)
        """Updates skipped in all, and in a row up to now."""
        self._recent: deque[tuple[int, int, int, int]] = deque(maxlen=max_in_row)

    def judge(self, parameters: Sequence[nn.Parameter], clip_norm: float | None) -> Tensor:
        """Return 1 if the gradient, the sum of all processes', is not finite; else clip it: 0."""
        if clip_norm is None:
            grads = [p.grad for p in parameters if p.grad is not None]
            norm = torch.nn.utils.get_total_norm(grads)
        else:
            norm = torch.nn.utils.clip_grad_norm_(parameters, clip_norm)
        return 1 - torch.isfinite(norm).float()

    def count(self, skip: Tensor, step: int, update: Update) -> None:
        """Count an update, and remember where its sentences are."""
        self._counts[0] += skip
        self._counts[1] = (self._counts[1] + 1) * skip
        self._recent.append((step, update.epoch, update.offset, update.num_sentences))

    def restore(self, skipped: int, in_row: int) -> None:
        """Go on counting from a checkpoint."""
        self._counts.copy_(torch.tensor([skipped, in_row]))

    def read(self) -> tuple[int, int]:
        """Return how many updates were skipped in all, and in a row up to now."""
        skipped, in_row = self._counts.tolist()
        return int(skipped), int(in_row)

    def write_report(self, path: Path, data: TrainingData, in_row: int) -> None:
        """Write the sentences of the last updates, as numbers and as text, for a person to see."""
        report = []
        for step, epoch, offset, num_sentences in list(self._recent)[-in_row:]:
            numbers = data.order(epoch)[offset : offset + num_sentences]
            sources, targets = data.store.pairs(numbers)
            report.append({
                "update": step,
                "epoch": epoch,
                "offset": offset,
                "sentences": numbers.tolist(),
                "source": data.tokenizer.source.decode([row.tolist() for row in sources]),
                "target": data.tokenizer.target.decode([row.tolist() for row in targets]),
            })  # fmt: skip
        text = json.dumps(report, indent=1, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")
