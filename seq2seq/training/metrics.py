"""Training metrics between two log steps."""

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
    """Sums since the last log step; loss and nll stay on the device until they are read."""

    def __init__(
        self,
        device: torch.device,
        processes: Processes,
        flops: Callable[[int, int], float],
        label_is_token: bool,
    ) -> None:
        """flops: floating-point operations of training on this many source and target tokens.

        label_is_token: count labels as tokens for the speed; otherwise all tokens that are read.
        """
        self._device, self._processes, self._flops = device, processes, flops
        self._label_is_token = label_is_token
        self.peak_flops = math.inf
        """FLOP/s of matrix products on all processes together, the peak that MFU is relative to."""
        self.clear()

    def clear(self) -> None:
        """Reset all sums."""
        self._sums = torch.zeros(3, dtype=widest_float(self._device), device=self._device)
        """Loss and nll of this process and labels of all, without skipped updates."""
        self._labels = self._real_tokens = self._padded_tokens = self.num_updates = 0
        self._lr = 0.0
        self._seconds = 0.0
        self._running_since = time.monotonic()

    def add(self, update: Update, sums: Tensor, lr: float, skip: Tensor) -> None:
        """Add an update; sums: (2,), loss and nll of this process, ignored if it was skipped."""
        labels = self._sums.new_full((1,), update.num_labels)
        self._sums += torch.where(skip.bool(), 0, torch.cat([sums.to(self._sums), labels]))
        self._padded_tokens += sum(batch.num_padded_tokens for batch in update.batches)
        self._labels += update.num_labels
        self._real_tokens += update.num_real_tokens
        self.num_updates += 1
        self._lr = lr

    def pause(self) -> None:
        """Exclude the time since the sums were last read from the speed."""
        self._running_since = time.monotonic()

    def totals(self) -> list[float]:
        """Return the sums over all processes, for a checkpoint."""
        loss, nll, trained = self._sums.tolist()  # synchronises with the GPU
        self._seconds += time.monotonic() - self._running_since
        self._running_since = time.monotonic()
        loss, nll, padded = self._processes.all_reduce_sum(loss, nll, self._padded_tokens)
        counts = [self._labels, self._real_tokens, self.num_updates]
        return [loss, nll, trained, padded, *counts, self._lr, self._seconds]

    def restore(self, totals: list[float]) -> None:
        """Restore the sums of a checkpoint; the main process takes those of all processes."""
        if not totals:
            return
        share = 1 if self._processes.is_main else 0
        loss, nll, trained, padded, labels, real, updates, lr, seconds = totals
        own = [loss * share, nll * share, trained]
        self._sums.copy_(torch.tensor(own, dtype=torch.float64))
        self._padded_tokens = int(padded) * share
        self._labels, self._real_tokens = int(labels), int(real)
        self.num_updates, self._lr, self._seconds = int(updates), lr, seconds

    def finish(self) -> dict[str, float]:
        """Return the metrics over all processes since the last log step, and reset the sums."""
        totals = self.totals()
        loss, nll, trained, padded, labels, real, updates, lr, seconds = totals
        self.clear()
        source, counted = (real - labels, labels) if self._label_is_token else (real, real)
        return {
            "loss": loss / trained if trained else float("nan"),
            "nll": nll / trained if trained else float("nan"),
            "lr": lr,
            "tokens_per_second": counted / seconds,
            "mfu": self._flops(int(source), int(labels)) / seconds / self.peak_flops,
            "tokens_per_update": counted / updates,
            "real_share": real / padded,
        }
