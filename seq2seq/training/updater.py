"""One update: forward and backward passes of the micro-batches, then the optimisers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch
from accelerate import Accelerator
from torch import Tensor

from seq2seq.config import TrainingConfig
from seq2seq.data.packing import Batch
from seq2seq.machine.precision import DTYPES, precision_of
from seq2seq.machine.threads import timed
from seq2seq.model.network import Network
from seq2seq.training.finite import clip_gradient
from seq2seq.training.loss import ModelLoss
from seq2seq.training.optimizer import build_optimizers, step_optimizers


class Updater:
    """Updates a model on the accelerator's device and in its precision."""

    def __init__(self, model: Network, training: TrainingConfig, accelerator: Accelerator) -> None:
        self._accelerator, self._clip_norm = accelerator, training.clip_norm
        self._model = model.to(accelerator.device)
        self.optimizers = build_optimizers(model, training, DTYPES[precision_of(accelerator)])
        # Accelerate is not given the schedule: it would step it once per process in each update.
        loss = ModelLoss(model, training.label_smoothing, training.r_drop / 2)
        self.loss = accelerator.prepare(loss)  # runs it under autocast

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
        (2,), in nats; and a scalar, 1 if the update was skipped, else 0.
        """
        self.loss.train()
        # DistributedDataParallel averages over processes, but the loss is a sum over all labels.
        scale = self._accelerator.num_processes / num_labels
        sums = []
        for i, batch in enumerate(batches):
            sums.append(self._add_gradient(batch, scale, exchange=i == len(batches) - 1))
            if after_batch:
                after_batch(batch)
        skip = clip_gradient(list(self._model.parameters()), self._clip_norm)
        step_optimizers(self.optimizers, lr, skip)
        return torch.stack(sums).sum(dim=0), skip

    def dry_run(self, batch: Batch) -> None:
        """Make an update of one batch that changes nothing, for its memory use."""
        self.loss.train()
        try:
            self._add_gradient(batch, 0.0, exchange=False)
            skip = torch.ones((), dtype=torch.float32, device=self._accelerator.device)
            step_optimizers(self.optimizers, 0.0, skip)
        finally:
            self._model.zero_grad()

    def _add_gradient(self, batch: Batch, scale: float, *, exchange: bool) -> Tensor:
        """Run one micro-batch forward and backward; exchange: all-reduce the gradients."""
        batch = batch.to(self._accelerator.device)
        no_sync = contextlib.nullcontext() if exchange else self._accelerator.no_sync(self.loss)
        work = timed("training", batch.num_tokens, self._accelerator.device)
        with no_sync, work:
            loss, nll = self.loss(batch)
            self._accelerator.backward(loss * scale)
        return torch.stack([loss.detach(), nll])
