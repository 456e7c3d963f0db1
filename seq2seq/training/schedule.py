"""Learning rate schedules as pure functions of the update."""

import math

from seq2seq.config import TrainingConfig


def learning_rate(config: TrainingConfig, dim: int, step: int, elapsed_minutes: float = 0) -> float:
    """Return the learning rate of update `step`, counted from 1.

    noam: lr * D^-0.5 * min(step^-0.5, step * warmup^-1.5) (Vaswani et al. 2017, equation 3).
    inverse_sqrt: linear to the peak `lr`, then lr * sqrt(warmup / step).
    cosine: linear to the peak `lr`, then half a cosine down to `lr_end` at `max_steps` or
    `max_minutes`, whichever comes first.
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
