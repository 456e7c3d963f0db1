"""Choose the size of a model, its regularisation and the length of its training, by a trial."""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stderr
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from seq2seq.config import Config, resolve
from seq2seq.data.json_objects import read_object_file
from seq2seq.model.saved import MODEL_FILE
from seq2seq.planning.corpus import CorpusFacts
from seq2seq.planning.sizes import MOST_EPOCHS, Size, dropout
from seq2seq.preparation.corpora import TextPair
from seq2seq.task import load_task
from seq2seq.training.records import read_metrics
from seq2seq.training.run import train

TRAINING_SHARE = 0.93
"""Of the time of a run; the rest are validations and checkpoints."""
SPARE = 4
"""Updates that a recipe allows, relative to those expected in its time: other programs may use
the machine while it is measured."""
VALIDATIONS = 10
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


@dataclass(frozen=True)
class Plan:
    """What to train, and what it will cost."""

    config: Config
    size: Size
    trial: Trial
    tokens: float
    """Training tokens that fit into the time."""
    epochs: float
    minutes: float
    """Of training, without preparation."""
    disk: float
    """GiB, of the run."""


def make_plan(data: dict[str, Any], task: str, facts: CorpusFacts, minutes: float) -> Plan:
    """Try models of growing size on this machine; return the plan for the largest that pays.

    data: the recipe's section `data`.
    """
    chosen: tuple[Size, Config, Trial] | None = None
    for size in load_task(task).planner.sizes:
        if chosen:
            before, _, trial = chosen
            expected = _tokens(trial, minutes) * _weights(before) / _weights(size)
            if facts.num_kept < size.examples or expected < 0.7 * size.tokens:
                break
        config = _config(data, task, size, facts)
        trial = run_trial(config, facts.sample)
        if chosen and _tokens(trial, minutes) < size.tokens:
            break
        chosen = size, config, trial
    assert chosen  # the first size needs nothing
    return _plan(*chosen, facts, minutes)


def num_gpus() -> int:
    """Return how many processes `scripts/train` starts: one for each GPU, or one on a CPU."""
    return max(1, torch.cuda.device_count())


def _tokens(trial: Trial, minutes: float) -> float:
    """Return how many training tokens all GPUs see in some minutes."""
    return trial.tokens_per_second * num_gpus() * 60 * minutes * TRAINING_SHARE


def _weights(size: Size) -> float:
    """Return the approximate number of weights of the layers, as products per token."""
    shape = size.model
    return float(shape["layers"] * shape["dim"] * (4 * shape["dim"] + 2 * shape["ffn_dim"]))


def _plan(size: Size, config: Config, trial: Trial, facts: CorpusFacts, minutes: float) -> Plan:
    tokens = _tokens(trial, minutes)
    per_epoch = max(1.0, facts.num_kept * trial.tokens_per_example)
    epochs = min(tokens / per_epoch, MOST_EPOCHS)
    per_update = size.training["batch_tokens"]
    expected = epochs * per_epoch / per_update
    most = min(SPARE * expected, MOST_EPOCHS * per_epoch / per_update)
    updates = max(50, rounded(most))
    noam = size.training["schedule"] == "noam"
    training = replace(
        config.training,
        max_steps=updates,
        max_minutes=minutes,
        # Of what is expected: a machine that becomes slower must get through it.
        warmup_steps=min(4000 if noam else 100, max(5, round(expected / 20))),
        validate_every=max(20, rounded(expected / VALIDATIONS)),
        checkpoint_every_minutes=round(min(max(3.0, minutes / 5), 10.0, minutes / 3), 2),
        log_every=20 if updates < 20_000 else 100,
    )
    config = replace(
        config, training=training, model=replace(config.model, dropout=dropout(size, epochs))
    )
    copies = 3 * training.keep_last + 2  # weights and the optimiser's moments; best and last
    return Plan(
        config,
        size,
        trial,
        tokens,
        epochs,
        minutes=min(minutes, minutes * epochs * per_epoch / tokens),
        disk=copies * 4 * trial.parameters / 2**30,
    )


def _config(data: dict[str, Any], task: str, size: Size, facts: CorpusFacts) -> Config:
    """Return a recipe of this size with the values that do not depend on a trial."""
    model = {key: value for key, value in size.model.items() if key != "layers"}
    own = load_task(task)
    for key in ("encoder_layers", "decoder_layers"):
        if getattr(own.defaults.model, key):
            model[key] = size.model["layers"]
    model |= {"norm": "pre", "positions": "rotary"}
    training = {**size.training, "validate_every_epochs": None, "max_steps": 1000}
    training["micro_batch_tokens"] = size.training["batch_tokens"]
    tree: dict[str, Any] = {"name": "new", "task": task, "data": data, "model": model,
                            "training": training}  # fmt: skip
    for section, values in own.planner.settings(facts).items():
        tree[section] = tree.get(section, {}) | values
    return resolve(tree, "the new recipe")


def rounded(number: float) -> int:
    """Return a whole number of two digits and zeros, not below the given one."""
    digits = 10 ** max(0, math.floor(math.log10(max(1.0, number))) - 1)
    return math.ceil(number / digits) * digits


def run_trial(config: Config, sample: Sequence[TextPair]) -> Trial:
    """Train a recipe on a sample for some seconds.

    sample: pairs; of a classifier texts and labels; of a language model texts and empty strings.
    """
    logger = logging.getLogger("seq2seq")
    with tempfile.TemporaryDirectory() as name, redirect_stderr(StringIO()), ExitStack() as stack:
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)  # which silences the training
        folder, task = Path(name), load_task(config.task)
        planner = task.planner
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
        return Trial(
            tokens / duration,
            planner.tokens_per_example(data, sample),
            read_object_file(run / "last" / MODEL_FILE)["parameters"],
            float(timed[-1]["memory_gib"]),
        )
