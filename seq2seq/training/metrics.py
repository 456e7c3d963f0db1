"""What is summed up between two log steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from seq2seq.data.stream import Update
from seq2seq.machine.precision import widest_float
from seq2seq.processes import Processes


class TrainingMetrics:
    """Sums since the last log step; those of the device stay there until they are asked for."""

    def __init__(
        self,
        device: torch.device,
        processes: Processes,
        flops: Callable[[int, int], float],
        label_is_token: bool,
    ) -> None:
        """flops: source and target tokens to the operations of training on them.

        label_is_token: whether speed counts the labels, which are tokens; else all tokens read.
        """
        self._device, self._processes, self._flops = device, processes, flops
        self._label_is_token = label_is_token
        self.peak_flops = math.inf
        """Operations a second that all processes together could do."""
        self.clear()

    def clear(self) -> None:
        """Begin at nothing."""
        self._sums = torch.zeros(3, dtype=widest_float(self._device), device=self._device)
        """Loss and nll of this process, and labels of all, as far as not skipped."""
        self._labels = self._real_tokens = self._padded_tokens = self.num_updates = 0
        self._rate = 0.0
        self._seconds = 0.0
        self._running_since = time.monotonic()

    def add(self, update: Update, sums: Tensor, rate: float, skip: Tensor) -> None:
        """Add an update; sums: (2,), Loss and nll of this process, left out if skipped."""
        labels = self._sums.new_full((1,), update.num_labels)
        self._sums += torch.where(skip.bool(), 0, torch.cat([sums.to(self._sums), labels]))
        self._padded_tokens += sum(batch.num_padded_tokens for batch in update.batches)
        self._labels += update.num_labels
        self._real_tokens += update.num_real_tokens
        self.num_updates += 1
        self._rate = rate

    def pause(self) -> None:
        """Leave what has passed since the sums were last read out of the speed."""
        self._running_since = time.monotonic()

    def totals(self) -> list[float]:
        """Return the sums over all processes, for a checkpoint."""
        loss, nll, trained = self._sums.tolist()  # waits for a GPU
        self._seconds += time.monotonic() - self._running_since
        self._running_since = time.monotonic()
        loss, nll, padded = self._processes.all_reduce_sum(loss, nll, self._padded_tokens)
        counts = [self._labels, self._real_tokens, self.num_updates]
        return [loss, nll, trained, padded, *counts, self._rate, self._seconds]

    def restore(self, totals: list[float]) -> None:
        """Go on from a checkpoint's sums; the main process takes those of all."""
        if not totals:
            return
        share = 1 if self._processes.is_main else 0
        loss, nll, trained, padded, labels, real, updates, rate, seconds = totals
        own = [loss * share, nll * share, trained]
        self._sums.copy_(torch.tensor(own, dtype=torch.float64))
        self._padded_tokens = int(padded) * share
        self._labels, self._real_tokens = int(labels), int(real)
        self.num_updates, self._rate, self._seconds = int(updates), rate, seconds

    def finish(self) -> dict[str, float]:
        """Return the interval's metrics over all processes, and begin the next."""
        totals = self.totals()
        loss, nll, trained, padded, labels, real, updates, rate, seconds = totals
        self.clear()
        source, counted = (real - labels, labels) if self._label_is_token else (real, real)
        return {
            "loss": loss / trained if trained else float("nan"),
            "nll": nll / trained if trained else float("nan"),
            "lr": rate,
            "tokens_per_second": counted / seconds,
            "mfu": self._flops(int(source), int(labels)) / seconds / self.peak_flops,
            "tokens_per_update": counted / updates,
            "real_share": real / padded,
        }
