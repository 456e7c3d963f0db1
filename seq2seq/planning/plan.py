"""Choose the size of a model, its regularisation and the length of its training."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from seq2seq.config import Config
from seq2seq.config.recipe import resolve
from seq2seq.planning.corpus import CorpusFacts
from seq2seq.planning.sizes import MOST_EPOCHS, Size, dropout
from seq2seq.planning.trial import Trial, run_trial
from seq2seq.task import load_task

TRAINING_SHARE = 0.93
"""Of the time of a run; the rest are validations and checkpoints."""
SPARE = 4
"""Updates that a recipe allows, relative to those expected in its time: other programs may use
the machine while it is measured."""
VALIDATIONS = 10


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
    chosen: tuple[Size, Trial] | None = None
    for size in load_task(task).planner().sizes:
        if chosen:
            before, trial = chosen
            expected = _tokens(trial, minutes) * _weights(before) / _weights(size)
            if facts.num_kept < size.examples or expected < 0.7 * size.tokens:
                break
        config = _config(data, task, size, facts)
        trial = run_trial(config, facts.sample)
        if chosen and _tokens(trial, minutes) < size.tokens:
            break
        chosen = size, trial
    assert chosen  # the first size needs nothing
    return _plan(data, task, facts, minutes, *chosen)


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


def _plan(
    data: dict[str, Any], task: str, facts: CorpusFacts, minutes: float, size: Size, trial: Trial
) -> Plan:
    tokens = _tokens(trial, minutes)
    per_epoch = max(1.0, facts.num_kept * trial.tokens_per_example)
    epochs = min(tokens / per_epoch, MOST_EPOCHS)
    per_update = size.training["batch_tokens"]
    expected = epochs * per_epoch / per_update
    most = min(SPARE * expected, MOST_EPOCHS * per_epoch / per_update)
    updates = max(50, rounded(most))
    config = _config(data, task, size, facts)
    noam = size.training["schedule"] == "noam"
    training = replace(
        config.training,
        max_steps=updates,
        max_minutes=minutes,
        # Of what is expected: a machine that becomes slower must get through it.
        warmup_steps=min(4000 if noam else 100, max(5, round(expected / 20))),
        validate_every=max(20, rounded(expected / VALIDATIONS)),
        checkpoint_every_minutes=max(3.0, min(10.0, minutes / 5)),
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
    for section, values in own.planner().settings(facts).items():
        tree[section] = tree.get(section, {}) | values
    return resolve(tree, "the new recipe")


def rounded(number: float) -> int:
    """Return a whole number of two digits and zeros, not below the given one."""
    digits = 10 ** max(0, math.floor(math.log10(max(1.0, number))) - 1)
    return math.ceil(number / digits) * digits
