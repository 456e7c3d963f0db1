"""Schedule of a run: learning rate, validations, checkpoints and the end of training."""

from __future__ import annotations

import math

from seq2seq.config import TrainingConfig
from seq2seq.training.run_directory import RunState


def learning_rate(config: TrainingConfig, dim: int, step: int, elapsed_minutes: float = 0) -> float:
    """Return the learning rate of update `step`, counted from 1.

    noam: lr * D^-0.5 * min(step^-0.5, step * warmup^-1.5) (Vaswani et al. 2017, equation 3).
    inverse_sqrt: linear to the peak `lr`, then lr * sqrt(warmup / step).
    cosine: linear to the peak `lr`, then half a cosine down to `lr_end`. The cosine's progress is
    the larger of (step - warmup) / (max_steps - warmup) and elapsed_minutes / max_minutes.
    """
    warmup = config.warmup_steps
    if config.schedule == "noam":
        return config.lr * dim**-0.5 * min(step**-0.5, step * warmup**-1.5)
    if step <= warmup:
        return config.lr * step / warmup
    if config.schedule == "inverse_sqrt":
        return config.lr * math.sqrt(warmup / step)
    done = (step - warmup) / max(1, config.max_steps - warmup)
    if config.max_minutes is not None:
        done = max(done, elapsed_minutes / config.max_minutes)
    left = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    return config.lr_end + (config.lr - config.lr_end) * left


def is_last(config: TrainingConfig, state: RunState) -> bool:
    """Return whether training ends with the latest update, `state.step`."""
    return (
        state.step >= config.max_steps
        or (config.max_minutes is not None and state.minutes >= config.max_minutes)
        or (config.patience is not None and state.validations_since_best >= config.patience)
    )


def is_finished(config: TrainingConfig, state: RunState) -> bool:
    """Return whether a run is complete, including its last validation and average."""
    averaged = config.average_last <= 1 or state.averaged == state.step
    return 0 < state.step == state.validated and averaged and is_last(config, state)


def validation_is_due(config: TrainingConfig, state: RunState) -> bool:
    """Return whether a validation follows the latest update, and has not been made."""
    intervals = config.validate_every, config.validate_every_epochs
    return state.validated != state.step and _is_multiple(state, *intervals)


def checkpoint_is_due(config: TrainingConfig, state: RunState) -> bool:
    """Return whether a checkpoint follows the latest update."""
    minutes, every = state.minutes - state.minutes_at_checkpoint, config.checkpoint_every_minutes
    intervals = config.checkpoint_every, config.checkpoint_every_epochs
    return (every is not None and minutes >= every) or _is_multiple(state, *intervals)


def _is_multiple(state: RunState, every: int | None, every_epochs: int | None) -> bool:
    """Return whether an interval of updates or epochs ends with this update."""
    epoch_ended = state.offset == 0 and state.epoch > 0
    return state.step > 0 and bool(
        (every and state.step % every == 0)
        or (every_epochs and epoch_ended and state.epoch % every_epochs == 0)
    )


def minutes_left(config: TrainingConfig, state: RunState) -> float:
    """Return the remaining time of a run at its mean speed, validations included."""
    left = state.minutes / state.step * (config.max_steps - state.step)
    if config.max_minutes is None:
        return left
    return max(0.0, min(left, config.max_minutes - state.minutes))
