"""Accelerate as a run uses it: it starts processes and exchanges gradients; the recipe decides."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, GradientAccumulationPlugin

from seq2seq.config import TrainingConfig
from seq2seq.extras import require_extra
from seq2seq.machine.precision import Precision

logger = logging.getLogger(__name__)


def make_accelerator(training: TrainingConfig, run: Path, precision: Precision) -> Accelerator:
    """Return the accelerator of a run; warns of settings that the recipe overrides."""
    if training.tensorboard:
        require_extra("tensorboard", "training.tensorboard=true")
    _warn_of_overridden(training, precision)
    accelerator = Accelerator(
        # Explicit, since Accelerate would read them from the environment: the updater has its own
        # autocast, the loss would be divided by the number of steps, and the model compiled.
        mixed_precision="no",
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
        dynamo_backend="no",
        # Not static_graph: torch exchanges at the end of the first backward pass then, which fails
        # if that is within `no_sync`, as the dry run's is. Every parameter has a gradient in every
        # micro-batch. Buffers are not set: no module has any, and torch has renamed the argument.
        kwargs_handlers=[
            DistributedDataParallelKwargs(
                find_unused_parameters=False,
                gradient_as_bucket_view=True,
                static_graph=False,
            )
        ],
        log_with="tensorboard" if training.tensorboard else None,
        project_dir=str(run),
    )
    if training.tensorboard:
        accelerator.init_trackers("tensorboard")
    return accelerator


def _warn_of_overridden(training: TrainingConfig, precision: Precision) -> None:
    """Warn of settings of `accelerate launch` that differ from what the recipe says."""
    asked = os.environ.get("ACCELERATE_MIXED_PRECISION", "").lower()
    if asked not in ("", "no", precision):  # "no" is the launcher's default
        here = "" if training.precision == precision else f" ({precision} here)"
        logger.warning(
            "ACCELERATE_MIXED_PRECISION=%s is overridden by training.precision=%s%s of the recipe; "
            "set training.precision instead",
            asked,
            training.precision,
            here,
        )
    steps = os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "")
    if steps not in ("", "1"):
        logger.warning(
            "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=%s is overridden by training.batch_tokens=%d "
            "and training.micro_batch_tokens=%d of the recipe; set those instead",
            steps,
            training.batch_tokens,
            training.micro_batch_tokens,
        )
    backend = os.environ.get("ACCELERATE_DYNAMO_BACKEND", "").lower()
    if backend not in ("", "no", *(["inductor"] if training.compile else [])):
        logger.warning(
            "ACCELERATE_DYNAMO_BACKEND=%s is overridden by training.compile=%s of the recipe; set "
            "training.compile instead",
            backend,
            str(training.compile).lower(),
        )
