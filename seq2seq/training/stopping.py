"""When to validate, write a checkpoint and stop."""

from __future__ import annotations

from seq2seq.config import TrainingConfig
from seq2seq.training.checkpoint import Progress


class RunSchedule:
    """Decides from the recipe and the progress of a run what is due after an update."""

    def __init__(self, training: TrainingConfig, progress: Progress) -> None:
        """progress: that of the run, which the trainer updates."""
        self.training, self.progress = training, progress
        self.minutes_at_checkpoint = self.minutes_before = progress.minutes
        self._first_step = progress.step

    def validation_is_due(self) -> bool:
        """Return whether a validation is due and not done yet."""
        training, progress = self.training, self.progress
        if not progress.step or progress.validated == progress.step:
            return False
        return self._is_due(training.validate_every, training.validate_every_epochs)

    def checkpoint_is_due(self) -> bool:
        """Return whether a checkpoint is due."""
        every = self.training.checkpoint_every_minutes
        minutes = self.progress.minutes - self.minutes_at_checkpoint
        return self.checkpoint_is_regular() or (every is not None and minutes >= every)

    def checkpoint_is_regular(self) -> bool:
        """Return whether every run of the recipe has a checkpoint at this update."""
        training = self.training
        return self._is_due(training.checkpoint_every, training.checkpoint_every_epochs)

    def is_over(self) -> bool:
        """Return whether the last update is done."""
        training, progress = self.training, self.progress
        if progress.step >= training.max_steps:
            return True
        if training.patience and progress.validations_since_best >= training.patience:
            return True
        return training.max_minutes is not None and progress.minutes >= training.max_minutes

    def is_finished(self) -> bool:
        """Return whether everything is done, including the final validation and averaging."""
        progress = self.progress
        averaged = self.training.average_last <= 1 or progress.averaged == progress.step
        validated = progress.validated == progress.step
        return progress.step > 0 and self.is_over() and validated and averaged

    def minutes_left(self, minutes_per_update: float | None = None) -> float:
        """Return the remaining time at this speed (by default, the mean since the start)."""
        training, progress = self.training, self.progress
        pace = self._minutes_per_update() if minutes_per_update is None else minutes_per_update
        left = pace * (training.max_steps - progress.step)
        if training.max_minutes is None:
            return left
        return max(0.0, min(left, training.max_minutes - progress.minutes))

    def last_step(self, minutes_per_update: float) -> float:
        """Return the expected last update at this speed."""
        return self.progress.step + self.minutes_left(minutes_per_update) / minutes_per_update

    def _minutes_per_update(self) -> float:
        """Return the mean time per update since the process was started."""
        progress = self.progress
        minutes, steps = progress.minutes - self.minutes_before, progress.step - self._first_step
        return minutes / max(1, steps)

    def _is_due(self, every: int | None, every_epochs: int | None) -> bool:
        progress = self.progress
        if every is not None and progress.step % every == 0:
            return True
        epoch_ended = progress.offset == 0 and progress.epoch > 0
        return bool(every_epochs and epoch_ended and progress.epoch % every_epochs == 0)
