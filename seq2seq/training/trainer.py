"""The training loop: updates, validations and checkpoints."""

from __future__ import annotations

import logging
import signal
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from accelerate import Accelerator

from seq2seq.config import Config
from seq2seq.data.packing import Batch
from seq2seq.data.prefetch import prefetched
from seq2seq.data.stream import TrainingData, Update
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import SharedError, UserError
from seq2seq.machine.memory import out_of_memory
from seq2seq.machine.precision import peak_matmul_flops, precision_of
from seq2seq.model.directory import load_weights, save_model, snapshot
from seq2seq.model.flops import training_flops
from seq2seq.model.network import Network
from seq2seq.processes import Processes, peer_is_lost
from seq2seq.training.averaging import average_models
from seq2seq.training.finite import FiniteCheck
from seq2seq.training.forecast import Forecast
from seq2seq.training.memory import require_memory
from seq2seq.training.metrics import TrainingMetrics
from seq2seq.training.optimizer import load_optimizer_state, optimizer_state
from seq2seq.training.progress import Monitor
from seq2seq.training.resume import require_same_run
from seq2seq.training.run_directory import OPTIMIZER_FILE, RunDirectory, SaveModel
from seq2seq.training.schedule import learning_rate
from seq2seq.training.signals import Interrupted, Signals
from seq2seq.training.state import RunState
from seq2seq.training.stopping import RunSchedule
from seq2seq.training.task import Evaluate
from seq2seq.training.updater import Updater

logger = logging.getLogger(__name__)


class Trainer:
    """Trains a model in a run directory, resuming from its last checkpoint if there is one."""

    def __init__(
        self,
        config: Config,
        run: Path,
        model: Network,
        tokenizer: Tokenizer,
        data: TrainingData,
        evaluate: Evaluate,
        accelerator: Accelerator,
        processes: Processes,
    ) -> None:
        self.config, self.tokenizer, self.directory = config, tokenizer, RunDirectory(run)
        self.data, self.evaluate = data, evaluate
        self.accelerator, self.processes = accelerator, processes
        self.model = model
        self.updater = Updater(model, config.training, accelerator)
        self.state = RunState(data=data.examples.checksum)
        # The main process decides which checkpoint is undamaged.
        newest = self.directory.newest_checkpoint() if processes.is_main else None
        if resumed := processes.broadcast(newest):
            self.state = self._resume(resumed)
        self.finite = FiniteCheck(config.training.max_skipped, self.state)
        self.schedule = RunSchedule(config.training, self.state)
        if processes.is_main:
            self.directory.tidy(resumed, self.state)
        self.signals = Signals()
        self._stop_signal = 0
        """Number of the signal that any process received; 0 if none."""
        self._forecast = Forecast(
            config.training, self.schedule, accelerator.device, processes.count
        )
        self._started = time.monotonic()
        passes = 2 if config.training.r_drop else 1
        flops = partial(training_flops, model, passes=passes)
        label_is_token = data.examples.label_is_token
        self._metrics = TrainingMetrics(accelerator.device, processes, flops, label_is_token)

    def _resume(self, checkpoint: Path) -> RunState:
        """Load weights and optimiser state of a checkpoint; return its state."""
        state, data = RunState.load(checkpoint), self.state.data
        require_same_run(checkpoint, self.tokenizer, self.config, saved_data=state.data, data=data)
        load_weights(self.model, checkpoint)
        tensors = safetensors.torch.load_file(str(checkpoint / OPTIMIZER_FILE))
        load_optimizer_state(self.updater.optimizers, tensors)
        logger.info("resuming %s after update %d", self.directory.path, state.step)
        return state

    def train(self) -> RunState:
        """Train until `max_steps`, `max_minutes` or `patience` is reached, or a signal comes.

        Raises SystemExit, with 128 and the signal's number, when one has ended the run.
        """
        if self.schedule.is_finished():
            logger.info(
                "%s is finished; %s",
                self.directory.path,
                "to train longer, start another run with --run, since the cosine has ended"
                if self.config.training.schedule == "cosine"
                else "raise training.max_steps, max_minutes or patience to continue",
            )
            return self.state
        training = self.config.training
        with (
            self.signals.installed(),
            Monitor(
                self.directory.path,
                self.accelerator,
                done=self.state,
                max_steps=training.max_steps,
            ) as monitor,
        ):
            self._metrics.peak_flops = self._peak_flops()
            require_memory(self.updater.dry_run, self.data, self.processes)
            self._metrics.restore(self.state.totals)
            self._started = time.monotonic()
            self._metrics.pause()
            try:
                self._train(monitor)
                if self._stop_signal:
                    self._save()
                    self.directory.wait()
                self.processes.barrier()  # if one exited early, the launcher would kill the others
            except Interrupted:  # in a validation, before which the state was updated
                self._stop_signal = self.signals.number
                self._write_checkpoint(stopping=True)
            self.directory.wait()
        if self._stop_signal:
            self._report_stop()
            raise SystemExit(128 + self._stop_signal)
        return self.state

    def _train(self, monitor: Monitor) -> None:
        """Make the remaining updates and finish the run."""
        if self.schedule.validation_is_due():  # a signal interrupted it
            self._validate(monitor)
        while not self._stop_signal and not self.schedule.is_over():
            self._train_epoch(monitor)
        if not self._stop_signal:
            self._finish(monitor)

    def _train_epoch(self, monitor: Monitor) -> None:
        """Train on the rest of this epoch, or until the run ends."""
        training, state = self.config.training, self.state
        first_step = state.step
        with closing(prefetched(self.data.epoch(state.epoch, state.offset))) as updates:
            for update in updates:
                try:
                    self._step(update)
                except (RuntimeError, MemoryError) as error:
                    if not out_of_memory(error):
                        raise
                    self.directory.wait()
                    raise UserError(
                        f"out of memory in update {state.step + 1}: lower "
                        f"training.micro_batch_tokens; {self.directory.describe_last()}"
                    ) from None
                monitor.update(state.step)
                if state.step % training.log_every == 0:
                    self._log(monitor)
                if not self._stop_signal and self.schedule.validation_is_due():
                    self._validate(monitor)
                if self._stop_signal or self.schedule.is_over():
                    return
                if self.schedule.checkpoint_is_due():
                    self._save()
        if state.step == first_step:
            # The resumed offset is beyond the end of an epoch that has become shorter.
            state.epoch, state.offset = state.epoch + 1, 0

    def _step(self, update: Update) -> None:
        """Make one update and record its results."""
        state, training = self.state, self.config.training
        lr = learning_rate(
            training, self.config.model.dim, state.step + 1, elapsed_minutes=state.minutes
        )
        torch.manual_seed(update_seed(training.seed, state.step, self.processes.index))
        self._forecast.begin_update()
        sums, skip = self.updater.update(
            update.batches, update.num_labels, lr, partial(self._foresee, update)
        )
        self.finite.note(skip, state.step + 1, update)
        self._metrics.add(update, sums, lr, skip)
        state.step += 1
        state.offset = update.offset + update.num_sentences
        if update.ends_epoch:
            state.epoch, state.offset = update.epoch + 1, 0
        self._synchronize()
        self.directory.check()

    def _foresee(self, update: Update, batch: Batch) -> None:
        """Log the forecast once, after a micro-batch."""
        share = batch.num_labels * self.processes.count / update.num_labels
        if not self._forecast.add(share):
            return
        token_labels = self.data.examples.label_is_token
        tokens = update.num_labels if token_labels else update.num_real_tokens
        line, warning = self._forecast.make(tokens)
        logger.info(line)
        if warning:
            logger.warning(warning)

    def _peak_flops(self) -> float:
        """Return the peak FLOP/s of matrix products over all processes."""
        device, precision = self.accelerator.device, precision_of(self.accelerator)
        [peak] = self.processes.all_reduce_sum(peak_matmul_flops(device, precision))
        return peak

    def _synchronize(self) -> None:
        """Share the main process's clock and any signal, so that all processes decide equally."""
        minutes = self.schedule.minutes_before + (time.monotonic() - self._started) / 60
        self.state.minutes, number = self.processes.all_reduce_max(
            minutes if self.processes.is_main else 0.0, self.signals.number
        )
        self._stop_signal = int(number)

    def _log(self, monitor: Monitor) -> None:
        metrics = self._metrics.finish()
        self._check_finite()
        state = self.state
        metrics |= {
            "epoch": state.epoch,
            "minutes": state.minutes,
            "skipped": state.skipped,
            "threads": torch.get_num_threads(),
        }
        monitor.training(state.step, self.schedule.minutes_left(), metrics)

    def _check_finite(self) -> None:
        """Count skipped updates; raise UserError for too many consecutive ones."""
        state, before = self.state, self.state.skipped
        good = self.finite.read()
        if state.skipped > before:
            logger.warning(
                "%d updates up to update %d were skipped because of non-finite gradients",
                state.skipped - before,
                state.step,
            )
        if good:
            return
        path = self.directory.path / "not_finite.json"
        if self.processes.is_main:
            self.finite.write_report(path, self.data)
        self.directory.wait()
        self.processes.barrier()
        raise SharedError(
            f"the gradient was not finite in {state.skipped_in_row} consecutive updates, up to "
            f"update {state.step} or shortly before; their sentences are in {path}. Start a new "
            "run with a lower training.lr, a longer training.warmup_steps or training.clip_norm=1 "
            "(training.init_from starts it from a checkpoint's weights); "
            f"{self.directory.describe_last()}"
        )

    def _measure(self) -> dict[str, float]:
        """Return metrics on the development set and training time, equal on all processes."""
        self.model.eval()
        self._update_state()  # so that a signal during the validation can save at once
        self._forecast.pause()
        try:
            with self.signals.interruptible():
                metrics = self.processes.broadcast(self.evaluate(self.model))
        except RuntimeError as error:
            if peer_is_lost(error):  # perhaps only that one received a signal
                self._write_checkpoint(stopping=True)
                self.directory.wait()
            raise
        self.model.train()
        self._metrics.pause()
        self._synchronize()
        return metrics | {"minutes": self.state.minutes}

    def _validation_score(self, metrics: dict[str, float]) -> float:
        """Return the score that selects the best model; higher is better."""
        by = self.config.training.best_by
        return -metrics[by] if by == "nll" else metrics[by]

    def _validate(self, monitor: Monitor) -> None:
        """Evaluate the model on the development set, and keep it if it is among the best."""
        state, training = self.state, self.config.training
        metrics = self._measure()
        score, step = self._validation_score(metrics), state.step
        best = state.add_validation(score, training.keep_best)
        if self.processes.is_main and state.is_kept(step):
            self.directory.save_kept(*self._snapshot(), state)
        monitor.validation(step, metrics, best=best)
        if state.validations_since_best == training.patience:
            logger.info("no better model in %d validations: stopping", training.patience)

    def _save(self) -> None:
        """Write a checkpoint."""
        self._update_state()
        self._write_checkpoint(stopping=bool(self._stop_signal))
        self._metrics.pause()

    def _update_state(self) -> None:
        """Update the state from the counters of all processes."""
        self._check_finite()
        self._synchronize()
        self.state.totals = self._metrics.totals()

    def _write_checkpoint(self, *, stopping: bool) -> None:
        """Write the state as it is, without communicating with other processes."""
        state = self.state
        state.regular = self.schedule.checkpoint_is_regular() or not stopping
        self.schedule.minutes_at_checkpoint = state.minutes
        if not self.processes.is_main or not state.step:
            return
        keep_last = self.config.training.keep_last
        if self.directory.is_saved(state.step):
            self.directory.save_state(state, keep_last)
        else:
            tensors = optimizer_state(self.updater.optimizers)
            self.directory.save_checkpoint(*self._snapshot(), tensors, state, keep_last)

    def _snapshot(self) -> tuple[SaveModel, int]:
        """Copy the weights; return a function that writes them to a folder, and their size."""
        weights = snapshot(self.model)
        save = partial(save_model, weights=weights, tokenizer=self.tokenizer, config=self.config)
        return save, sum(tensor.nbytes for tensor in weights.values())

    def _finish(self, monitor: Monitor) -> None:
        """Log, validate, save and average after the last update."""
        training, state = self.config.training, self.state
        if self._metrics.num_updates:
            self._log(monitor)
        if state.step < training.warmup_steps:
            logger.warning(
                "the run ended after update %d, within its warm-up (training.warmup_steps) of %d; "
                "train longer, or shorten the warm-up",
                state.step,
                training.warmup_steps,
            )
        if state.validated != state.step:
            self._validate(monitor)
        self._save()
        if training.average_last > 1 and state.averaged != state.step:
            self._average(monitor)

    def _average(self, monitor: Monitor) -> None:
        """Average the last checkpoints; the average becomes `best` if it is better."""
        self.directory.wait()
        state = self.state
        averaged = self.directory.average_folder(state)
        if self.processes.is_main:
            folders = self.directory.regular_checkpoints()[-self.config.training.average_last :]
            average_models(folders, averaged)
            logger.info("average of %d checkpoints", len(folders))
            if len(folders) < self.config.training.average_last:
                logger.warning(
                    "training.average_last=%d needs more checkpoints: write them more often "
                    "(training.checkpoint_every, _minutes or _epochs)",
                    self.config.training.average_last,
                )
        self.processes.barrier()
        own = snapshot(self.model)
        load_weights(self.model, averaged)
        try:
            metrics = self._measure()
        finally:  # also if a signal interrupts it
            with torch.no_grad():
                for name, parameter in self.model.named_parameters():
                    parameter.copy_(own[name])
        best = state.add_average(self._validation_score(metrics))
        monitor.validation(state.step, metrics, best=best, kind="average")
        self._save()

    def _report_stop(self) -> None:
        logger.warning(
            "stopped by %s after update %d; %s, and the same command resumes from it",
            signal.Signals(self._stop_signal).name,
            self.state.step,
            self.directory.describe_last(),
        )


def update_seed(seed: int, step: int, process: int) -> int:
    """Return the random seed of one update in one process."""
    return int(np.random.SeedSequence([seed, step, process]).generate_state(1, np.uint64)[0])
