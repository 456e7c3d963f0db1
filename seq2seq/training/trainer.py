"""The training loop: updates, validations, checkpoints, and when to stop."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch import Tensor

from seq2seq.config import Config
from seq2seq.data.batching import TrainingData, Update
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError
from seq2seq.model.directory import load_weights, save_model, written_whole
from seq2seq.model.transformer import Transformer
from seq2seq.training.checkpoint import (
    Progress,
    average_models,
    check_resumable,
    checkpoints,
    load_checkpoint,
    save_checkpoint,
    save_progress,
)
from seq2seq.training.loss import TranslationLoss
from seq2seq.training.optimizer import build_optimizers
from seq2seq.training.progress import Monitor
from seq2seq.training.schedule import learning_rate

Evaluate = Callable[[Transformer], dict[str, float]]
"""A model to its metrics on the development set; `bleu` decides which model is best."""

logger = logging.getLogger(__name__)


def resolve_precision(precision: str, device: torch.device) -> str:
    """Turn `auto` into bf16 where the processor multiplies it natively, else into fp32."""
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    native = device.type == "cpu" and torch.cpu.get_capabilities().get("avx512_bf16", False)
    return "bf16" if native else "fp32"


class Trainer:
    """Trains one run; a run directory that holds a checkpoint is gone on with."""

    def __init__(
        self,
        config: Config,
        run: Path,
        model: Transformer,
        tokenizer: Tokenizer,
        data: TrainingData,
        evaluate: Evaluate,
        accelerator: Accelerator,
    ) -> None:
        self.config, self.run, self.tokenizer = config, run, tokenizer
        self.data, self.evaluate, self.accelerator = data, evaluate, accelerator
        self.model = model.to(accelerator.device)
        self.optimizers = build_optimizers(model, config.training)
        self.progress = Progress()
        saved = checkpoints(run)
        if saved:
            check_resumable(saved[-1], tokenizer, config)
            self.progress = load_checkpoint(saved[-1], model, self.optimizers)
            logger.info("resuming %s after update %d", run, self.progress.step)
        # The schedule stays outside: a prepared one would step once for each process.
        self.loss = accelerator.prepare(TranslationLoss(model, config.training.label_smoothing))
        self._minutes_before = self._minutes_at_checkpoint = self.progress.minutes
        self._started = time.monotonic()
        self._epoch_ended = False
        self._interval = _Interval(accelerator)

    def train(self) -> Progress:
        """Train until `max_steps`, `max_minutes` or `patience` is reached."""
        training = self.config.training
        averaged = training.average_last <= 1 or (self.run / "averaged").exists()
        if self.progress.step and self._is_over() and averaged:
            logger.info(
                "%s is finished; larger limits (training.max_steps, max_minutes, patience) go on",
                self.run,
            )
            return self.progress
        with Monitor(
            self.run,
            self.accelerator,
            first_step=self.progress.step,
            max_steps=training.max_steps,
        ) as monitor:
            validated = saved = -1
            while not self._is_over():
                started_at = self.progress.step
                for update in self.data.epoch(self.progress.epoch, self.progress.offset):
                    self._step(update)
                    monitor.update(self.progress.step)
                    if self.progress.step % training.log_every == 0:
                        self._log(monitor)
                    if self._is_due(training.validate_every, training.validate_every_epochs):
                        self._validate(monitor)
                        validated = self.progress.step
                    if self._checkpoint_is_due():
                        self._save()
                        saved = self.progress.step
                    if self._is_over():
                        break
                if self.progress.step == started_at:
                    # A resumed place behind the end of an epoch that has become shorter.
                    self.progress.epoch, self.progress.offset = self.progress.epoch + 1, 0
            if self._interval.num_updates:
                self._log(monitor)
            if training.max_minutes and self.progress.step < min(
                training.warmup_steps, training.max_steps
            ):
                logger.warning(
                    "training.max_minutes ended the run after %d updates, within its warm-up of "
                    "%d: the model has learned next to nothing",
                    self.progress.step,
                    training.warmup_steps,
                )
            if self.progress.step != saved:
                self._save()
            if self.progress.step != validated:
                self._validate(monitor)
            if training.average_last > 1:
                self._average(monitor)
            if self.accelerator.is_main_process:  # the last checkpoint learns of the best BLEU
                save_progress(checkpoints(self.run)[-1], self.progress)
        return self.progress

    def _step(self, update: Update) -> None:
        """Make one update: every micro-batch forward and backward, then the optimiser."""
        progress, training = self.progress, self.config.training
        self._read_clock()
        rate = learning_rate(
            training, self.config.model.dim, progress.step + 1, elapsed_minutes=progress.minutes
        )
        self.loss.train()
        # Gradients are averaged over processes; the loss is one sum over one count of tokens.
        scale = self.accelerator.num_processes / update.num_target_tokens
        for i, batch in enumerate(update.batches):
            batch = batch.to(self.accelerator.device)
            last = i == len(update.batches) - 1
            sync = contextlib.nullcontext() if last else self.accelerator.no_sync(self.loss)
            with sync:
                with self.accelerator.autocast():
                    loss, likelihood = self.loss(batch)
                self.accelerator.backward(loss * scale)
            self._interval.add_batch(loss.detach(), likelihood, batch.num_padded_tokens)
        if training.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), training.clip_norm)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
        self._interval.add_update(update.num_target_tokens, update.num_real_tokens, rate)
        progress.step += 1
        progress.offset = update.offset + update.num_sentences
        self._epoch_ended = update.ends_epoch
        if update.ends_epoch:
            progress.epoch, progress.offset = update.epoch + 1, 0

    def _is_due(self, every: int | None, every_epochs: int | None) -> bool:
        progress = self.progress
        if every is not None and progress.step % every == 0:
            return True
        return bool(every_epochs and self._epoch_ended and progress.epoch % every_epochs == 0)

    def _checkpoint_is_due(self) -> bool:
        training = self.config.training
        if self._is_due(training.checkpoint_every, training.checkpoint_every_epochs):
            return True
        every = training.checkpoint_every_minutes
        return every is not None and self.progress.minutes - self._minutes_at_checkpoint >= every

    def _is_over(self) -> bool:
        training, progress = self.config.training, self.progress
        if progress.step >= training.max_steps:
            return True
        if training.patience and progress.validations_since_best >= training.patience:
            return True
        return training.max_minutes is not None and progress.minutes >= training.max_minutes

    def _read_clock(self) -> None:
        """Set `progress.minutes`, by the main process's clock: all must decide alike."""
        seconds = [time.monotonic() - self._started]
        if self.accelerator.num_processes > 1:
            broadcast_object_list(seconds)
        self.progress.minutes = self._minutes_before + seconds[0] / 60

    def _log(self, monitor: Monitor) -> None:
        metrics = self._interval.finish()
        metrics |= {"epoch": self.progress.epoch, "minutes": self.progress.minutes}
        self._check_finite(metrics["loss"])
        monitor.training(self.progress.step, self._minutes_left(), metrics)

    def _check_finite(self, loss: float) -> None:
        if math.isfinite(loss):
            return
        saved = checkpoints(self.run)
        raise UserError(
            f"the loss is {loss} at update {self.progress.step}: lower training.lr, lengthen "
            "training.warmup_steps or set training.clip_norm; the last good checkpoint is "
            f"{saved[-1] if saved else 'none'}"
        )

    def _minutes_left(self) -> float:
        training, progress = self.config.training, self.progress
        left = progress.minutes / progress.step * (training.max_steps - progress.step)
        if training.max_minutes is None:
            return left
        return max(0.0, min(left, training.max_minutes - progress.minutes))

    def _validate(self, monitor: Monitor) -> None:
        """Measure the model on the development set; keep it if its BLEU is the best so far."""
        progress, model = self.progress, self.model
        model.eval()
        metrics = [self.evaluate(model) if self.accelerator.is_main_process else {}]
        [metrics] = broadcast_object_list(metrics)
        model.train()
        self._interval.pause()
        self._read_clock()
        best = progress.best_bleu is None or metrics["bleu"] > progress.best_bleu
        progress.validations_since_best += 1
        if best:
            progress.best_bleu, progress.validations_since_best = metrics["bleu"], 0
            if self.accelerator.is_main_process:
                with written_whole(self.run / "best") as folder:
                    save_model(folder, model, self.tokenizer, self.config)
        monitor.validation(progress.step, metrics, best=best)
        if progress.validations_since_best == self.config.training.patience:
            logger.info("no better BLEU in %d validations: stopping", self.config.training.patience)

    def _save(self) -> None:
        self._check_finite(self._interval.loss_sum())
        self._read_clock()
        self._minutes_at_checkpoint = self.progress.minutes
        if self.accelerator.is_main_process:
            save_checkpoint(
                self.run, self.model, self.tokenizer, self.config, self.optimizers, self.progress
            )
        self.accelerator.wait_for_everyone()
        self._interval.pause()

    def _average(self, monitor: Monitor) -> None:
        """Average the last checkpoints; the mean becomes `best` if its BLEU is."""
        folders = checkpoints(self.run)[-self.config.training.average_last :]
        averaged = self.run / "averaged"
        if self.accelerator.is_main_process:
            average_models(folders, averaged)
        self.accelerator.wait_for_everyone()
        load_weights(self.model, averaged)
        logger.info("average of %d checkpoints", len(folders))
        self._validate(monitor)


class _Interval:
    """Sums between two log steps; they stay on the device until they are asked for."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._start()

    def _start(self) -> None:
        self._sums: Tensor = torch.zeros(2, device=self._accelerator.device)
        self._target_tokens = self._real_tokens = self._padded_tokens = self.num_updates = 0
        self._rate = 0.0
        self._seconds = 0.0
        self._running_since = time.monotonic()

    def add_batch(self, loss: Tensor, likelihood: Tensor, padded_tokens: int) -> None:
        self._sums += torch.stack([loss, likelihood])
        self._padded_tokens += padded_tokens

    def add_update(self, target_tokens: int, real_tokens: int, rate: float) -> None:
        self._target_tokens += target_tokens
        self._real_tokens += real_tokens
        self.num_updates += 1
        self._rate = rate
        self._seconds += time.monotonic() - self._running_since
        self._running_since = time.monotonic()

    def loss_sum(self) -> float:
        """Return the summed loss since the last log step, over all processes."""
        return float(self._accelerator.reduce(self._sums[0], reduction="sum"))

    def pause(self) -> None:
        """Leave what has passed since the last update out of the speed."""
        self._running_since = time.monotonic()

    def finish(self) -> dict[str, float]:
        """Return the interval's metrics over all processes, and begin the next."""
        padded = torch.tensor([float(self._padded_tokens)], device=self._sums.device)
        sums = self._accelerator.reduce(torch.cat([self._sums, padded]), reduction="sum").tolist()
        metrics = {
            "loss": sums[0] / self._target_tokens,
            "nll": sums[1] / self._target_tokens,
            "lr": self._rate,
            "tokens_per_second": self._target_tokens / self._seconds,
            "tokens_per_update": self._target_tokens / self.num_updates,
            "real_share": self._real_tokens / sums[2],
        }
        self._start()
        return metrics
