"""The training loop: updates, validations and checkpoints."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from seq2seq.config import Config
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.training_data import TrainingData, Update, prefetched
from seq2seq.errors import UserError
from seq2seq.formats.weights import average_models, load_weights, save_model, snapshot
from seq2seq.machine.devices import return_freed_memory
from seq2seq.model.transformer import Network
from seq2seq.processes import Processes, Signals, peer_is_lost
from seq2seq.training import schedule
from seq2seq.training.log import TrainingLog
from seq2seq.training.optimizer import load_optimizer_state, optimizer_state
from seq2seq.training.run_directory import MAX_PENDING, RunDirectory, RunState, require_same_run
from seq2seq.training.update import Updater, require_memory

OPTIMIZER_FILE = "training.safetensors"

logger = logging.getLogger(__name__)

Evaluate = Callable[[Any], dict[str, float]]
"""Returns the metrics of a model on the development set, including `training.best_by`."""


class Trainer:
    """Trains a model in a run directory, resuming from its last checkpoint if there is one."""

    def __init__(
        self,
        config: Config,
        run: Path,
        tokenizer: Tokenizer,
        data: TrainingData,
        evaluate: Evaluate,
        updater: Updater,
        processes: Processes,
    ) -> None:
        self.config, self.tokenizer, self.data, self.evaluate = config, tokenizer, data, evaluate
        self.updater, self.model, self.processes = updater, updater.model, processes
        training, self.directory = config.training, RunDirectory(run)
        self.state = RunState(data=data.examples.checksum)
        # The main process decides which checkpoint is undamaged.
        newest = self.directory.newest_checkpoint() if processes.is_main else None
        if resumed := processes.broadcast(newest):
            self.state = self._resume(resumed)
            if not schedule.is_finished(training, self.state):
                logger.info("resuming %s after update %d", run, self.state.step)
            if processes.is_main:
                self.directory.reconcile(self.state, resumed)
        self.log = TrainingLog(run, training, self.state, updater, processes)
        self.signals = Signals()
        self.stopped_by = 0
        """Number of a signal that a process received, or 0."""

    def _resume(self, checkpoint: Path) -> RunState:
        """Load weights and optimiser state from a checkpoint, and return its run state."""
        state, data = RunState.load(checkpoint), self.state.data
        require_same_run(checkpoint, self.tokenizer, self.config, saved_data=state.data, data=data)
        load_weights(self.model, checkpoint)
        tensors = safetensors.torch.load_file(checkpoint / OPTIMIZER_FILE)
        load_optimizer_state(self.updater.optimizers, tensors)
        if state.loss_scale:
            self.updater.scaler.load_state_dict(state.loss_scale)
        return state

    def train(self) -> RunState:
        """Train until `max_steps`, `max_minutes` or `patience` is reached, or a signal is received.

        Raises SystemExit, with exit code 128 + signal number, after a signal.
        """
        if schedule.is_finished(self.config.training, self.state):
            advice = "to continue it, raise training.max_steps, max_minutes or patience"
            if self.config.training.schedule == "cosine":
                advice = "a cosine schedule has a fixed length; to train longer, use a new --run"
            logger.info("%s is finished; %s", self.directory.path, advice)
            return self.state
        if self.config.training.warmup_steps >= self.config.training.max_steps:
            logger.warning("training ends during warm-up (training.warmup_steps >= max_steps)")
        with self.signals.installed(), self.log.bar:
            require_memory(self.updater, self.data, self.processes)
            self._started = time.monotonic() - 60 * self.state.minutes
            self.log.restart_clock()
            try:
                self._train()
                self.directory.wait()
                self.processes.barrier()  # a launcher kills the others when a process exits early
            except KeyboardInterrupt:  # in a validation, before which `_evaluate` updated the state
                self.stopped_by = self.signals.number
                self._write_checkpoint()
            self.directory.wait()
        if self.stopped_by:
            logger.warning(
                "stopped by %s after update %d; %s. The same command resumes the run",
                signal.Signals(self.stopped_by).name,
                self.state.step,
                self.directory.describe_last(),
            )
            raise SystemExit(128 + self.stopped_by)
        return self.state

    def _train(self) -> None:
        """Make the remaining updates and finish the run, or save it after a signal."""
        state, training = self.state, self.config.training
        is_first = state.step == 0 and state.validated < 0
        # The initial model might be the best one, but not if it lacks a language.
        is_first = is_first and not self.config.tokenizer.new_pieces
        # A validation is still due if a signal interrupted it.
        if (training.init_from and is_first) or schedule.validation_is_due(training, state):
            self._validate()
        with closing(prefetched(self.data.updates(state.epoch, state.offset))) as updates:
            while not self._ends():
                self.update(next(updates))
                if state.step % training.log_every == 0:
                    self._log()
                if schedule.validation_is_due(training, state) and not self.stopped_by:
                    self._validate()
                if schedule.checkpoint_is_due(training, state) and not self._ends():
                    self._save()
        if self.stopped_by:
            self._save()
        else:
            self._finish()

    def _ends(self) -> bool:
        return bool(self.stopped_by) or schedule.is_last(self.config.training, self.state)

    def update(self, update: Update) -> None:
        """Make an update and record its results."""
        state, training = self.state, self.config.training
        dim, step = self.config.model.dim, state.step + 1
        lr = schedule.learning_rate(training, dim, step, elapsed_minutes=state.minutes)
        torch.manual_seed(update_seed(training.seed, state.step, self.processes.index))
        labels, tokens = self.processes.all_reduce(update.num_labels, update.num_tokens)
        result = self.updater.update(update.batches, int(labels), lr)
        state.step += 1
        self.log.add(result, int(labels), int(tokens), lr)
        state.epoch, state.offset = update.next_epoch, update.next_offset
        self._synchronize()
        self.directory.wait(MAX_PENDING)

    def _synchronize(self) -> None:
        """Share the main process's clock, and a signal that any process has received."""
        minutes = (time.monotonic() - self._started) / 60
        self.state.minutes, number = self.processes.all_reduce(
            minutes if self.processes.is_main else 0.0, self.signals.number, operation="MAX"
        )
        self.stopped_by = int(number)

    def _log(self) -> None:
        self._read_results()
        self.log.training()

    def _read_results(self) -> None:
        """Add the results to the state; raises UserError after too many skipped updates."""
        self.log.read()
        state = self.state
        if state.consecutive_skips < self.config.training.max_skipped:
            return
        self.directory.wait()
        self.processes.barrier()
        raise UserError(
            f"the gradient was not finite in {state.consecutive_skips} consecutive updates, ending "
            f"at or shortly before update {state.step} (epoch {state.epoch}, offset "
            f"{state.offset}). "
            "Start a new run with a lower training.lr, a longer training.warmup_steps or "
            "training.clip_norm=1 (training.init_from starts it from a checkpoint's weights); "
            f"{self.directory.describe_last()}"
        )

    def _evaluate(self, model: Network) -> dict[str, float]:
        """Return development set metrics and training time, equal on all processes."""
        model.eval()
        self._update_state()  # a signal during the validation can then save at once
        try:
            with self.signals.interruptible():
                metrics = self.processes.broadcast(self.evaluate(model))
        except RuntimeError as error:
            if peer_is_lost(error):  # perhaps only the lost process received a signal
                self._write_checkpoint()
                self.directory.wait()
            raise
        model.train()
        return_freed_memory()
        self.log.restart_clock()
        self._synchronize()
        return metrics | {"minutes": self.state.minutes}

    def _validation_score(self, metrics: dict[str, float]) -> float:
        """Return the score for ranking models; higher is better."""
        by = self.config.training.best_by
        return -metrics[by] if by == "nll" else metrics[by]

    def _validate(self) -> None:
        """Evaluate the model on the development set, and save it if it is among the best."""
        state, training = self.state, self.config.training
        metrics = self._evaluate(self.model)
        best = state.add_validation(self._validation_score(metrics), training.keep_best)
        if self.processes.is_main and state.step in (step for _, step in state.kept):
            self._write(is_checkpoint=False)
        self.log.validation(metrics, best=best)
        if state.validations_since_best == training.patience:
            logger.info("stopping: no better model in %d validations", training.patience)

    def _save(self) -> None:
        self._update_state()
        self._write_checkpoint()
        self.log.restart_clock()

    def _update_state(self) -> None:
        """Update results, clock and loss scale in the state."""
        self._read_results()
        self._synchronize()
        self.state.loss_scale = self.updater.scaler.state_dict()

    def _write_checkpoint(self) -> None:
        """Write a checkpoint without communicating with other processes."""
        state, training = self.state, self.config.training
        is_due = schedule.checkpoint_is_due(training, state) or schedule.is_last(training, state)
        if is_due and state.step not in state.scheduled:
            state.scheduled = [*state.scheduled, state.step][-training.keep_last :]
        state.minutes_at_checkpoint = state.minutes
        if self.processes.is_main and state.step:
            self._write(is_checkpoint=True)

    def _write(self, *, is_checkpoint: bool) -> None:
        """Write a checkpoint, or a model to kept/, with copies of the tensors."""
        weights = snapshot(self.model)
        optimizers = optimizer_state(self.updater.optimizers) if is_checkpoint else None

        def write(folder: Path) -> None:
            save_model(folder, weights, self.tokenizer, self.config)
            if optimizers is not None:
                safetensors.torch.save_file(optimizers, folder / OPTIMIZER_FILE)

        self.directory.save(self.state, write, is_checkpoint=is_checkpoint)

    def _finish(self) -> None:
        """Log, validate, save and average, after the last update."""
        training, state = self.config.training, self.state
        if state.totals.updates:
            self._log()
        if state.validated != state.step:
            self._validate()
        self._save()
        if training.average_last > 1 and state.averaged != state.step:
            self._average()

    def _average(self) -> None:
        """Average the last checkpoints; the average becomes `best` if it is better."""
        self.directory.wait()
        state, count = self.state, self.config.training.average_last
        averaged = self.directory.path / "kept" / f"average_{state.step}"
        if self.processes.is_main:
            folders = self.directory.scheduled_checkpoints(state)[-count:]
            average_models(folders, averaged)
            logger.info("averaging the last %d checkpoints (average_last=%d)", len(folders), count)
        self.processes.barrier()
        load_weights(model := deepcopy(self.model), averaged)
        metrics = self._evaluate(model)
        best = state.add_average(self._validation_score(metrics))
        self.log.validation(metrics, best=best, kind="average")
        self._save()


def update_seed(seed: int, step: int, process: int) -> int:
    """Return the random seed of an update in a process."""
    return int(np.random.SeedSequence([seed, step, process]).generate_state(1, np.uint64)[0])
