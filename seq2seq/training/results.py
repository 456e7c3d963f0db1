"""Sum the results of updates in the run state and return their means as metrics."""

from __future__ import annotations

import logging
import math
import time
from itertools import chain

import torch

from seq2seq.processes import Processes
from seq2seq.training.checkpoint import RunState, Totals
from seq2seq.training.update import Result

logger = logging.getLogger(__name__)


class Results:
    """Adds the results of updates to the state of a run.

    The host reads results only for logs and checkpoints, so that it does not wait for a GPU after
    each update. Sums over all processes are added update by update, so that they do not depend on
    the time of reading.
    """

    def __init__(self, state: RunState, processes: Processes, max_skipped: int) -> None:
        """max_skipped: counting stops after this number of consecutive skipped updates."""
        self._state, self._processes, self._max_skipped = state, processes, max_skipped
        self._unread: list[tuple[Result, int]] = []
        """Results, with the number of labels over all processes."""
        self.restart_clock()

    def restart_clock(self) -> None:
        """Exclude the time since the last reading from the throughput."""
        self._running_since = time.monotonic()

    def add(self, result: Result, labels: int, tokens: int, lr: float) -> None:
        """Count an update and store its result, without reading it from the device."""
        totals = self._state.totals
        totals.tokens += tokens
        totals.updates += 1
        totals.lr = lr
        self._unread.append((result, labels))

    def read(self) -> None:
        """Read all results and add them to the state; a collective operation.

        The losses of skipped updates do not count. fp16 overflows do not count as skipped: the
        loss scale is lowered and training continues.
        """
        state, totals, skipped_before = self._state, self._state.totals, self._state.skipped
        totals.seconds += time.monotonic() - self._running_since
        self.restart_clock()
        unread, self._unread = self._unread, []
        if not unread:
            return
        rows = torch.stack(
            [torch.stack([*x.sums, x.gradient_norm, x.loss_scale]) for x, _ in unread]
        ).tolist()
        sums = iter(self._processes.all_reduce(*chain(*(row[:2] for row in rows))))
        for (*_, norm, loss_scale), (_, num_labels) in zip(rows, unread, strict=True):
            loss, nll = next(sums), next(sums)
            if state.consecutive_skips >= self._max_skipped:
                break
            if math.isfinite(norm):
                state.consecutive_skips = 0
                totals.loss += loss
                totals.nll += nll
                totals.trained_labels += num_labels
                totals.gradient_norms += norm
                totals.applied_updates += 1
            elif loss_scale > 1:
                state.overflows += 1
            else:
                state.skipped += 1
                state.consecutive_skips += 1
        if new := state.skipped - skipped_before:
            text = "skipped updates with a non-finite gradient: %d (up to update %d)"
            logger.warning(text, new, state.step)

    def metrics(self) -> dict[str, float]:
        """Return means over the updates since the last call, and reset the sums in the state."""
        total, self._state.totals = self._state.totals, Totals()
        trained = total.trained_labels or math.nan
        return {
            "loss": total.loss / trained,
            "nll": total.nll / trained,
            "lr": total.lr,
            "gradient_norm": total.gradient_norms / (total.applied_updates or math.nan),
            "tokens_per_second": total.tokens / total.seconds,
            "tokens_per_update": total.tokens / total.updates,
        }
