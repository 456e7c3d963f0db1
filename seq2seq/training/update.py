"""Make an update: forward and backward passes of micro-batches, clipping, optimiser steps.

An update with a non-finite gradient is skipped, without waiting for the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

import torch
from accelerate import Accelerator
from torch import Tensor

from seq2seq.config import TrainingConfig
from seq2seq.data.batching import Batch
from seq2seq.data.training_data import TrainingData
from seq2seq.errors import UserError
from seq2seq.machine.devices import out_of_memory
from seq2seq.machine.precision import DTYPES, Precision
from seq2seq.machine.threads import adapt_threads
from seq2seq.model.transformer import Network
from seq2seq.processes import Processes
from seq2seq.training.loss import ModelLoss
from seq2seq.training.optimizer import build_optimizers, step_optimizers


class Updater:
    """Makes updates of a model on the accelerator's device.

    In fp16 the loss is scaled, so that small gradients are not rounded to 0. The scale is halved
    after an overflow and doubled after 2,000 updates without overflow (Micikevicius et al. 2018,
    section 3.2).
    """

    def __init__(
        self,
        model: Network,
        training: TrainingConfig,
        accelerator: Accelerator,
        precision: Precision,
    ) -> None:
        self.accelerator, self.device = accelerator, accelerator.device
        self._clip_norm = training.clip_norm
        self.model = model.to(self.device)
        dtype, enabled = DTYPES[precision], precision != "fp32"
        # Accelerate's autocast does not support fp16 on a CPU.
        self.autocast = partial(torch.autocast, self.device.type, dtype) if enabled else nullcontext
        # Without an LRScheduler: Accelerate would step it once for each process.
        self.optimizers = build_optimizers(model, training, dtype)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")
        loss = ModelLoss(model, training.label_smoothing, training.r_drop)
        self.loss = accelerator.prepare(loss)

    def update(self, batches: Sequence[Batch], num_labels: int, lr: float) -> Tensor:
        """Make an update with learning rate `lr`; return loss, nll, norm and loss scale, (4,).

        Loss and nll, in nats, are sums over the labels of this process. `norm` is the gradient norm
        before clipping. If it is not finite, weights and optimiser state do not change.
        The loss scale is 1 unless in fp16. The result is on the device: the host does not wait.
        batches: micro-batches of this process. num_labels: number of labels over all processes.
        """
        self.loss.train()
        # DistributedDataParallel averages gradients over the processes, and the loss is a sum over
        # labels. With this factor, the gradient is that of the mean loss over all labels.
        loss_weight = self.accelerator.num_processes / num_labels
        sums = [
            self._add_gradient(batch, loss_weight, sync_gradients=i == len(batches) - 1)
            for i, batch in enumerate(batches)
        ]
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        parameters = [*self.model.parameters()]
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if self._clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, self._clip_norm, norm)
        skip = 1 - torch.isfinite(norm).float()
        step_optimizers(self.optimizers, lr, skip)
        loss_scale = self.scaler.scale(torch.ones_like(skip))
        self.scaler.update()
        return torch.stack([*torch.stack(sums).sum(dim=0), norm, loss_scale])

    def dry_run(self, batch: Batch) -> None:
        """Make an update that changes nothing, to test the memory use of a batch."""
        self.loss.train()
        try:
            self._add_gradient(batch, 0.0, sync_gradients=False)
            step_optimizers(self.optimizers, 0.0, skip=torch.ones((), device=self.device))
        finally:
            self.model.zero_grad()

    def _add_gradient(self, batch: Batch, loss_weight: float, *, sync_gradients: bool) -> Tensor:
        """Add the gradient of a micro-batch; return the sums of loss and nll, (2,).

        sync_gradients: all-reduce the gradients over the processes.
        """
        adapt_threads(self.device)
        batch = batch.to(self.device)
        with nullcontext() if sync_gradients else self.accelerator.no_sync(self.loss):
            with self.autocast():
                loss, nll = self.loss(batch)
            self.scaler.scale(loss * loss_weight).backward()
        return torch.stack([loss.detach(), nll])


def require_memory(updater: Updater, data: TrainingData, processes: Processes) -> None:
    """Do a dry run of the largest micro-batch; raises UserError if it does not fit into memory."""
    # Estimate of the most source or target tokens of a process: the last update of an epoch has up
    # to 1.5 * batch_tokens target tokens, and at most twice as many source tokens are assumed.
    tokens = math.ceil(3 * data.batch_tokens / data.num_processes)
    problem = ""
    try:
        updater.dry_run(data.examples.worst_case(min(data.micro_batch_tokens, tokens)))
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        problem = str(error).partition("\n")[0][:200] or "out of memory"
    if problems := list(filter(None, processes.all_gather([problem]))):
        raise UserError(
            f"training.micro_batch_tokens={data.micro_batch_tokens} does not fit into memory "
            f"({problems[0]}): lower it (the size of an update stays the same). If one example "
            "alone has as many tokens, lower data.clean.max_len (or model.context)"
        )
