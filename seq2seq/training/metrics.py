"""Training metrics between two log steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from seq2seq.data.training_data import Update
from seq2seq.machine.precision import widest_float
from seq2seq.processes import Processes
from seq2seq.training.state import Totals


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

        label_is_token: count labels as tokens for the speed, else all tokens of the input.
        """
        self._device, self._processes, self._flops = device, processes, flops
        self._label_is_token = label_is_token
        self.peak_flops = math.inf
        """FLOP/s of matrix products on all processes together, the peak that MFU is relative to."""
        self.clear()

    @property
    def num_updates(self) -> int:
        """Number of updates since the last log step."""
        return self._host.updates

    def clear(self) -> None:
        """Reset all sums."""
        self._sums = torch.zeros(5, dtype=widest_float(self._device), device=self._device)
        """[loss, nll, labels, gradient norms, updates] without skipped updates: loss and nll of
        this process, the others of all."""
        self._host = Totals()
        """The other sums; tokens with filler only of this process."""
        self._running_since = time.monotonic()

    def add(
        self, update: Update, sums: Tensor, lr: float, outcome: Tensor, gradient_norm: Tensor
    ) -> None:
        """Add an update; sums: (2,), loss and nll of this process, ignored if it was skipped."""
        labels, one = (self._sums.new_full((1,), x) for x in (update.num_labels, 1))
        norm = gradient_norm.reshape(1).to(self._sums)
        added = torch.cat([sums.to(self._sums), labels, norm, one])
        self._sums += torch.where(outcome.bool(), 0, added)
        host = self._host
        host.tokens_with_filler += sum(batch.num_tokens for batch in update.batches)
        host.labels += update.num_labels
        host.real_tokens += update.num_real_tokens
        host.updates += 1
        host.lr = lr

    def restart_clock(self) -> None:
        """Exclude the time since the sums were last read from the speed."""
        self._running_since = time.monotonic()

    def totals(self) -> Totals:
        """Return the sums over all processes, for a checkpoint."""
        loss, nll, trained, norms, made = self._sums.tolist()  # synchronises with the GPU
        self._host.seconds += time.monotonic() - self._running_since
        self._running_since = time.monotonic()
        loss, nll, with_filler = self._processes.all_reduce_sum(
            loss, nll, self._host.tokens_with_filler
        )
        return replace(
            self._host,
            loss=loss,
            nll=nll,
            trained_labels=trained,
            gradient_norms=norms,
            made_updates=made,
            tokens_with_filler=int(with_filler),
        )

    def restore(self, totals: Totals) -> None:
        """Restore the sums of a checkpoint; the main process takes those of all processes."""
        share = 1 if self._processes.is_main else 0
        sums = [
            totals.loss * share, totals.nll * share, totals.trained_labels, totals.gradient_norms,
            totals.made_updates,
        ]  # fmt: skip
        self._sums.copy_(torch.tensor(sums, dtype=torch.float64))
        self._host = replace(totals, tokens_with_filler=totals.tokens_with_filler * share)

    def finish(self) -> dict[str, float]:
        """Return the metrics over all processes since the last log step, and reset the sums."""
        total = self.totals()
        self.clear()
        source, counted = total.real_tokens, total.real_tokens
        if self._label_is_token:
            source, counted = total.real_tokens - total.labels, total.labels
        trained = total.trained_labels or math.nan
        return {
            "loss": total.loss / trained,
            "nll": total.nll / trained,
            "lr": total.lr,
            "gradient_norm": total.gradient_norms / (total.made_updates or math.nan),
            "tokens_per_second": counted / total.seconds,
            "mfu": self._flops(source, total.labels) / total.seconds / self.peak_flops,
            "tokens_per_update": counted / total.updates,
            "non_padding_fraction": total.real_tokens / total.tokens_with_filler,
        }
