"""When to validate, write a checkpoint and stop."""

from __future__ import annotations

from seq2seq.config import TrainingConfig
from seq2seq.training.state import RunState


class RunSchedule:
    """Decides from the recipe and the state of a run what is due after an update."""

    def __init__(self, training: TrainingConfig, state: RunState) -> None:
        """state: that of the run, which the trainer updates."""
        self.training, self.state = training, state
        self.minutes_at_checkpoint = self.minutes_before = state.minutes
        self._first_step = state.step

    def validation_is_due(self) -> bool:
        """Return whether a validation is due and not done yet."""
        training, state = self.training, self.state
        if not state.step or state.validated == state.step:
            return False
        return self._is_due(training.validate_every, training.validate_every_epochs)

    def checkpoint_is_due(self) -> bool:
        """Return whether a checkpoint is due."""
        every = self.training.checkpoint_every_minutes
        minutes = self.state.minutes - self.minutes_at_checkpoint
        return self.checkpoint_is_regular() or (every is not None and minutes >= every)

    def checkpoint_is_regular(self) -> bool:
        """Return whether every run of the recipe has a checkpoint at this update."""
        training = self.training
        return self._is_due(training.checkpoint_every, training.checkpoint_every_epochs)

    def is_over(self) -> bool:
        """Return whether the last update is done."""
        training, state = self.training, self.state
        if state.step >= training.max_steps:
            return True
        if training.patience and state.validations_since_best >= training.patience:
            return True
        return training.max_minutes is not None and state.minutes >= training.max_minutes

    def is_finished(self) -> bool:
        """Return whether everything is done, including the final validation and averaging."""
        state = self.state
        averaged = self.training.average_last <= 1 or state.averaged == state.step
        validated = state.validated == state.step
        return state.step > 0 and self.is_over() and validated and averaged

    def minutes_left(self, minutes_per_update: float | None = None) -> float:
        """Return the remaining time at this speed (by default, the mean since the start)."""
        training, state = self.training, self.state
        pace = self._minutes_per_update() if minutes_per_update is None else minutes_per_update
        left = pace * (training.max_steps - state.step)
        if training.max_minutes is None:
            return left
        return max(0.0, min(left, training.max_minutes - state.minutes))

    def last_step(self, minutes_per_update: float) -> float:
        """Return the expected last update at this speed."""
        return self.state.step + self.minutes_left(minutes_per_update) / minutes_per_update

    def _minutes_per_update(self) -> float:
        """Return the mean time per update since the process was started."""
        state = self.state
        minutes, steps = state.minutes - self.minutes_before, state.step - self._first_step
        return minutes / max(1, steps)

    def _is_due(self, every: int | None, every_epochs: int | None) -> bool:
        state = self.state
        if every is not None and state.step % every == 0:
            return True
        epoch_ended = state.offset == 0 and state.epoch > 0
        return bool(every_epochs and epoch_ended and state.epoch % every_epochs == 0)
