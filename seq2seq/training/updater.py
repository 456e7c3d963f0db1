"""One update of a model: forward and backward of its micro-batches, then the optimisers."""

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
from seq2seq.training.finite import clip_and_judge
from seq2seq.training.loss import ModelLoss
from seq2seq.training.optimizer import build_optimizers, step_optimizers


class Updater:
    """Updates the model on the accelerator's device, in its precision."""

    def __init__(self, model: Network, training: TrainingConfig, accelerator: Accelerator) -> None:
        self._accelerator, self._clip_norm = accelerator, training.clip_norm
        self._model = model.to(accelerator.device)
        self.optimizers = build_optimizers(model, training, DTYPES[precision_of(accelerator)])
        # The schedule stays outside: a prepared one would step once for each process.
        loss = ModelLoss(model, training.label_smoothing, training.r_drop / 2)
        self._loss = accelerator.prepare(loss)  # which runs it in the accelerator's precision

    def update(
        self,
        batches: Sequence[Batch],
        num_labels: int,
        rate: float,
        after_batch: Callable[[Batch], None] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Make one update with the learning rate `rate`; changes nothing if it is not finite.

        batches: this process's share of the update's `num_labels` labels. Returns the share's
        summed Loss and nll, (2,), in nats; and whether the update was skipped, (), 1 or 0.
        after_batch: called when a micro-batch's gradient has been added.
        """
        self._loss.train()
        # Gradients are averaged over processes; the loss is one sum over one count of labels.
        scale = self._accelerator.num_processes / num_labels
        sums = []
        for i, batch in enumerate(batches):
            sums.append(self._add_gradient(batch, scale, exchange=i == len(batches) - 1))
            if after_batch:
                after_batch(batch)
        skip = clip_and_judge(list(self._model.parameters()), self._clip_norm)
        step_optimizers(self.optimizers, rate, skip)
        return torch.stack(sums).sum(dim=0), skip

    def dry_run(self, batch: Batch) -> None:
        """Make an update of one batch that changes nothing but the memory it takes."""
        self._loss.train()
        try:
            self._add_gradient(batch, 0.0, exchange=False)
            skip = torch.ones((), dtype=torch.float32, device=self._accelerator.device)
            step_optimizers(self.optimizers, 0.0, skip)
        finally:
            self._model.zero_grad()

    def _add_gradient(self, batch: Batch, scale: float, *, exchange: bool) -> Tensor:
        """Run one micro-batch forward and backward; the last one exchanges the gradients."""
        batch = batch.to(self._accelerator.device)
        waiting = contextlib.nullcontext() if exchange else self._accelerator.no_sync(self._loss)
        work = timed("training", batch.num_padded_tokens, self._accelerator.device)
        with waiting, work:
            loss, nll = self._loss(batch)
            self._accelerator.backward(loss * scale)
        return torch.stack([loss.detach(), nll])
