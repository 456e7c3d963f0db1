"""A training of a few seconds on a sample of the corpus: the speed of a model on this machine."""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path

import safetensors

from seq2seq.config import Config
from seq2seq.preparation.corpora import TextPair
from seq2seq.task import load_task
from seq2seq.training.records import read_metrics
from seq2seq.training.run import train

SECONDS = 5.0
"""Training time of a trial."""
SKIPPED = 3
"""First updates, in which kernels are chosen and compiled."""


@dataclass(frozen=True)
class Trial:
    """What a model costs on this machine."""

    tokens_per_second: float
    """Target tokens (of a classifier: tokens)."""
    tokens_per_example: float
    parameters: int
    memory: float
    """GiB."""


def run_trial(config: Config, sample: Sequence[TextPair]) -> Trial:
    """Train a recipe on a sample for some seconds.

    sample: pairs; of a classifier texts and labels; of a language model texts and empty strings.
    """
    with tempfile.TemporaryDirectory() as name, _quiet():
        folder, task = Path(name), load_task(config.task)
        planner = task.planner()
        data_config = replace(config.data, store=str(folder / "store"))
        config = replace(
            config,
            data=planner.sample_data(data_config, sample, folder),
            training=replace(
                config.training, max_minutes=SECONDS / 60, max_steps=100_000, best_by="nll",
                validate_every=100_000, validate_every_epochs=None, validation_sentences=1,
                log_every=1, average_last=0, init_from=None,
            ),
        )  # fmt: skip
        data = task.prepare(config)
        run = folder / "run"
        train(config, run)
        updates = [each for each in read_metrics(run)[0] if each["kind"] == "train"]
        first, *timed = updates[min(SKIPPED, len(updates) - 2) :] if updates[1:] else updates * 2
        tokens = sum(float(each["tokens_per_update"]) for each in timed)
        duration = max(1e-3, 60 * (float(timed[-1]["minutes"]) - float(first["minutes"])))
        with safetensors.safe_open(run / "last" / "model.safetensors", "numpy") as weights:
            shapes = [weights.get_slice(key).get_shape() for key in weights.keys()]  # noqa: SIM118
        return Trial(
            tokens / duration,
            planner.tokens_per_example(data, sample),
            sum(map(math.prod, shapes)),
            float(timed[-1]["memory_gib"]),
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log of a training."""
    logger = logging.getLogger("seq2seq")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        logger.setLevel(level)
