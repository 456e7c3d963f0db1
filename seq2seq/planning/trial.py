"""A training of a few seconds, which measures what a recipe costs on this machine."""

from __future__ import annotations

import logging
import tempfile
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from statistics import median

from seq2seq.config import Config
from seq2seq.data.json_objects import read_object_file
from seq2seq.model.saved import MODEL_FILE
from seq2seq.preparation.prepare import prepare
from seq2seq.task import load_task
from seq2seq.training.records import read_metrics
from seq2seq.training.run import train

SECONDS = 5.0
"""Training time of a trial."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trial:
    """What a model costs on this machine."""

    tokens_per_second: float
    """Target tokens (of a classifier: tokens)."""
    tokens_per_epoch: float
    parameters: int
    memory: float
    """GiB."""


def run_trial(config: Config) -> Trial:
    """Prepare the data of a recipe, and train its model for some seconds."""
    task = load_task(config.task)
    examples = task.examples(config, prepare(config))
    epoch = examples.lens(examples.order(config.training.seed, 0))
    logger.info("measuring this machine: a training of a few seconds")
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
        train(replace(config, training=training), run)
        updates = [each for each in read_metrics(run) if each["kind"] == "train"]
        return Trial(
            # The median ignores the first updates, in which kernels are chosen and compiled.
            tokens_per_second=median(float(update["tokens_per_second"]) for update in updates),
            tokens_per_epoch=float(epoch.sum()),
            parameters=read_object_file(run / "last" / MODEL_FILE)["parameters"],
            memory=float(updates[-1]["memory_gib"]),
        )
