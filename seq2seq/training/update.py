"""One update: forward and backward passes of its micro-batches, clipping, the optimisers' step.

An update whose gradient is not finite is skipped and counted, without waiting for the device.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from seq2seq.config import TrainingConfig
from seq2seq.data.packing import Batch
from seq2seq.data.training_data import TrainingData, Update
from seq2seq.errors import SharedError
from seq2seq.files import write_text
from seq2seq.machine.precision import DTYPES, Precision
from seq2seq.machine.threads import timed
from seq2seq.model.transformer import Network
from seq2seq.processes import Processes
from seq2seq.training.checkpoint import RunState
from seq2seq.training.loss import ModelLoss
from seq2seq.training.optimizer import build_optimizers, dry_step, step_optimizers
from seq2seq.training.run_directory import RunDirectory

logger = logging.getLogger(__name__)


class Outcome(IntEnum):
    """What became of an update."""

    MADE = 0
    NOT_FINITE = 1
    """Skipped, since its gradient was not finite."""
    OVERFLOW = 2
    """Skipped, since its gradient, multiplied by the loss scale, exceeded fp16."""


class Result(NamedTuple):
    """What is known after an update, on the device."""

    sums: Tensor
    """Loss and nll of this process's shard, (2,), in nats."""
    outcome: Tensor
    """Number of the `Outcome`, a scalar."""
    gradient_norm: Tensor
    """Before clipping, a scalar."""


class Updater:
    """Updates a model on the accelerator's device.

    In fp16 the loss is scaled, so that small gradients are not rounded to 0; the scale is halved
    after an overflow, and doubled after 2,000 updates without one (Micikevicius et al. 2018,
    section 3.2).
    """

    def __init__(
        self, model: Network, training: TrainingConfig, accelerator: Accelerator,
        precision: Precision,
    ) -> None:  # fmt: skip
        self.accelerator, self._clip_norm = accelerator, training.clip_norm
        self.device, self.precision = accelerator.device, precision
        self.model = model.to(self.device)
        self.optimizers = build_optimizers(model, training, DTYPES[precision])
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")
        # Accelerate is not given the schedule: it would step it once per process in each update.
        loss = ModelLoss(model, training.label_smoothing, training.r_drop / 2)
        self.loss = accelerator.prepare(loss)

    def update(
        self,
        batches: Sequence[Batch],
        num_labels: int,
        lr: float,
        after_batch: Callable[[Batch], None] | None = None,
    ) -> Result:
        """Make one update with learning rate `lr`; changes nothing if the gradient is not finite.

        batches: this process's shard of the update; num_labels: labels of the whole update.
        after_batch: called after each micro-batch.
        """
        self.loss.train()
        # DistributedDataParallel averages over processes, but the loss is a sum over all labels.
        scale = self.accelerator.num_processes / num_labels
        sums = []
        for i, batch in enumerate(batches):
            sums.append(self._add_gradient(batch, scale, exchange=i == len(batches) - 1))
            if after_batch:
                after_batch(batch)
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        norm = clip_gradient([*self.model.parameters()], self._clip_norm)
        skip = 1 - torch.isfinite(norm).float()
        step_optimizers(self.optimizers, lr, skip)
        # A gradient that is not finite even without a scale is no overflow.
        scaled = self.scaler.scale(torch.ones_like(skip)) > 1
        self.scaler.update()
        return Result(torch.stack(sums).sum(dim=0), skip * (1 + scaled), norm)

    def dry_run(self, batch: Batch) -> None:
        """Make an update of one batch that changes nothing, for its memory use."""
        self.loss.train()
        try:
            self._add_gradient(batch, 0.0, exchange=False)
            dry_step(self.optimizers)
        finally:
            self.model.zero_grad()

    def dry_step(self) -> None:
        """Make a step of the optimisers that changes nothing, for its time."""
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        dry_step(self.optimizers)

    def synchronize(self) -> None:
        """Wait until a GPU has done what it was given, for measurements."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def _add_gradient(self, batch: Batch, scale: float, *, exchange: bool) -> Tensor:
        """Run one micro-batch forward and backward; exchange: all-reduce the gradients."""
        batch = batch.to(self.device)
        no_sync = contextlib.nullcontext() if exchange else self.accelerator.no_sync(self.loss)
        with no_sync, timed("training", batch.num_tokens, self.device):
            with self._autocast():
                loss, nll = self.loss(batch)
            self.scaler.scale(loss * scale).backward()
        return torch.stack([loss.detach(), nll])

    def _autocast(self) -> contextlib.AbstractContextManager[None]:
        """Compute products in this precision; not by Accelerate, which has no fp16 on a CPU."""
        if self.precision == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, DTYPES[self.precision])


def clip_gradient(parameters: Sequence[nn.Parameter], clip_norm: float | None) -> Tensor:
    """Clip the gradients in place; return their norm before, a scalar on the device."""
    if clip_norm is not None:
        return torch.nn.utils.clip_grad_norm_(parameters, clip_norm)
    return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])


class SkippedUpdates:
    """Counts skipped updates in the state of a run; the host reads the outcomes only on request.

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
        self._max_consecutive, self._state, self._data = max_consecutive, state, data
        self._directory, self._processes = directory, processes
        self._unread: list[tuple[Tensor, int, Update]] = []
        """Outcome and number of updates; these have no batches."""
        self._consecutive: list[tuple[int, Update]] = []
        """Skipped updates, with their numbers, since the last one that was not."""

    def add(self, outcome: Tensor, update: Update) -> None:
        """Store the outcome of the update that the state counts last, without reading it."""
        self._unread.append((outcome, self._state.step, replace(update, batches=[])))

    def read(self) -> None:
        """Read the outcomes and count skipped updates; raises SharedError for too many in a row.

        Overflows of fp16 are counted apart: the loss scale falls, and the run goes on.
        """
        if not self._unread:
            return
        outcomes = torch.stack([outcome for outcome, *_ in self._unread]).tolist()
        added, self._unread = self._unread, []
        state, before = self._state, self._state.skipped
        for outcome, (_, step, update) in zip(outcomes, added, strict=True):
            if state.consecutive_skips >= self._max_consecutive:
                break
            if outcome == Outcome.OVERFLOW:
                state.overflows += 1
            elif outcome == Outcome.NOT_FINITE:
                state.skipped += 1
                state.consecutive_skips += 1
                self._consecutive.append((step, update))
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
        for step, update in self._consecutive:
            order = self._data.order(update.epoch)
            numbers = order[update.offset : update.offset + update.num_sentences]
            report.append({
                "update": step,
                "epoch": update.epoch,
                "offset": update.offset,
                "sentences": numbers.tolist(),
                **self._data.examples.describe(numbers),
            })  # fmt: skip
        write_text(path, json.dumps(report, indent=1, ensure_ascii=False) + "\n")
