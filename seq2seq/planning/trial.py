"""Trial: training for a few seconds, to measure speed and memory on this machine."""

from __future__ import annotations

import logging
import tempfile
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from statistics import median

import torch

from seq2seq.config import Config
from seq2seq.data.examples import examples_of
from seq2seq.data.lines import read_object_file
from seq2seq.evaluation.evaluators import validator
from seq2seq.formats.model_directory import MODEL_FILE
from seq2seq.preparation.prepare import prepare
from seq2seq.training.records import read_metrics
from seq2seq.training.run import train

SECONDS = 5.0
"""Training time of a trial."""
TRAINING_SHARE = 0.93
"""Fraction of a run spent on training updates. Validations and checkpoints take the rest."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trial:
    """Speed and memory of a model on this machine."""

    tokens_per_second: float
    """Target tokens (classifier: input tokens) per second."""
    tokens_per_epoch: float
    parameters: int
    memory: float
    """Memory in GiB."""

    @property
    def tokens_per_minute(self) -> float:
        """Tokens per minute of a run on all GPUs, including its validations and checkpoints."""
        return self.tokens_per_second * 60 * num_gpus() * TRAINING_SHARE


def num_gpus() -> int:
    """Return the number of processes that `scripts/train` starts: one per GPU, or one on a CPU."""
    return max(1, torch.cuda.device_count())


def run_trial(config: Config) -> Trial:
    """Prepare the data of a recipe and train its model for a few seconds."""
    examples = examples_of(config, prepare(config))
    epoch = examples.lens(examples.order(config.training.seed, 0))
    logger.info("measuring this machine: training for a few seconds")
    training = replace(
        config.training,
        max_minutes=SECONDS / 60,
        max_steps=100_000,
        best_by="nll",
        validate_every=100_000,
        validate_every_epochs=None,
        validation_sentences=1,
        log_every=1,
        average_last=0,
        init_from=None,
    )
    with tempfile.TemporaryDirectory() as folder, redirect_stderr(StringIO()):
        run = Path(folder) / "run"
        train(replace(config, training=training), run, validator)
        updates = [line for line in read_metrics(run) if line["kind"] == "train"]
        return Trial(
            # The median ignores the slow first updates, which select and compile kernels.
            tokens_per_second=median(float(update["tokens_per_second"]) for update in updates),
            tokens_per_epoch=float(epoch.sum()),
            parameters=read_object_file(run / "last" / MODEL_FILE)["parameters"],
            memory=float(updates[-1]["memory_gib"]),
        )
