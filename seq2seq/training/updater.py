"""One update: forward and backward passes of the micro-batches, then the optimisers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch
from accelerate import Accelerator
from torch import Tensor

from seq2seq.config import TrainingConfig
from seq2seq.data.packing import Batch
from seq2seq.machine.precision import DTYPES, Precision
from seq2seq.machine.threads import timed
from seq2seq.model.network import Network
from seq2seq.training.finite import clip_gradient
from seq2seq.training.loss import ModelLoss
from seq2seq.training.optimizer import build_optimizers, step_optimizers


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
        self._accelerator, self._clip_norm = accelerator, training.clip_norm
        self.device, self.precision = accelerator.device, precision
        self._model = model.to(self.device)
        self.optimizers = build_optimizers(model, training, DTYPES[precision])
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")
        # Accelerate is not given the schedule: it would step it once per process in each update.
        loss = ModelLoss(model, training.label_smoothing, training.r_drop / 2)
        self.loss = accelerator.prepare(loss)
        self.gradient_norm = torch.zeros((), device=self.device)
        """Of the last update, before clipping."""

    def update(
        self,
        batches: Sequence[Batch],
        num_labels: int,
        lr: float,
        after_batch: Callable[[Batch], None] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Make one update with learning rate `lr`; changes nothing if the gradient is not finite.

        batches: this process's shard of the update; num_labels: labels of the whole update.
        after_batch: called after each micro-batch. Returns the sums of loss and nll of the shard,
        (2,), in nats; and a scalar, the number of the `Outcome`.
        """
        self.loss.train()
        # DistributedDataParallel averages over processes, but the loss is a sum over all labels.
        scale = self._accelerator.num_processes / num_labels
        sums = []
        for i, batch in enumerate(batches):
            sums.append(self._add_gradient(batch, scale, exchange=i == len(batches) - 1))
            if after_batch:
                after_batch(batch)
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        self.gradient_norm, skip = clip_gradient(list(self._model.parameters()), self._clip_norm)
        step_optimizers(self.optimizers, lr, skip)
        # A gradient that is not finite even without a scale is no overflow.
        scaled = self.scaler.scale(torch.ones_like(skip)) > 1
        self.scaler.update()
        return torch.stack(sums).sum(dim=0), skip * (1 + scaled)

    def dry_run(self, batch: Batch) -> None:
        """Make an update of one batch that changes nothing, for its memory use."""
        self.loss.train()
        try:
            self._add_gradient(batch, 0.0, exchange=False)
            self._dry_step()
        finally:
            self._model.zero_grad()

    def dry_step(self) -> None:
        """Make a step of the optimisers that changes nothing, for its time."""
        for parameter in self._model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self._dry_step()
        self._model.zero_grad()

    def _dry_step(self) -> None:
        skip = torch.ones((), dtype=torch.float32, device=self.device)
        step_optimizers(self.optimizers, 0.0, skip)

    def synchronize(self) -> None:
        """Wait until a GPU has done what it was given, for measurements."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def _add_gradient(self, batch: Batch, scale: float, *, exchange: bool) -> Tensor:
        """Run one micro-batch forward and backward; exchange: all-reduce the gradients."""
        batch = batch.to(self.device)
        no_sync = contextlib.nullcontext() if exchange else self._accelerator.no_sync(self.loss)
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
