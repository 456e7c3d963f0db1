"""`seq2seq new --from RUN`: a recipe that continues a model on other data without forgetting."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from seq2seq.config import Config, TrainingConfig, to_tree
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError
from seq2seq.evaluation.test_sets import split_of_run
from seq2seq.model.saved import describe_model, find_model
from seq2seq.planning.corpus import CorpusFacts
from seq2seq.planning.plan import rounded
from seq2seq.planning.recipe_text import Key, recipe_text
from seq2seq.planning.trial import Trial, run_trial
from seq2seq.progress_bar import duration

OLD_SHARE = 0.5
"""Of the old data among the pairs of an epoch."""
RATE = 0.25
"""Peak learning rate, relative to that of the initial model."""
RATE_ALONE = 1 / 16
"""The same where the old data are gone: it forgets less, and learns less."""
EPOCHS = 30
"""Repetitions of the new data."""
FEWEST_UPDATES = 100

logger = logging.getLogger(__name__)


def initial_model(run: Path) -> Config:
    """Return the recipe of the model to start from; raises UserError if it does not translate."""
    config, _ = describe_model(find_model(run))
    if config.task != "translation":
        raise UserError(f"--from: {run} does not translate: its task is {config.task}")
    return config


def fine_tuning(
    name: str, run: Path, config: Config, data: dict[str, Any], facts: CorpusFacts, minutes: float
) -> tuple[str, str]:
    """Return the text of a recipe, and what to expect of it.

    config: of the initial model, in `run`. data: section `data`, with the new corpora only.
    """
    old = _old_corpora(run, config, facts.num_kept)
    data = data | {"train": [*data["train"], *old]}
    trial = run_trial(_for_trial(config, data), facts.sample)
    per_epoch = facts.num_kept * trial.tokens_per_example / (1 - OLD_SHARE if old else 1)
    possible = trial.tokens_per_second * 60 * minutes * 0.9
    size = min(config.training.batch_tokens, 4096)
    updates = max(FEWEST_UPDATES, rounded(min(EPOCHS * per_epoch, possible) / size))
    rate = peak_rate(config.training, config.model.dim) * (RATE if old else RATE_ALONE)
    text = recipe_text(
        [
            f"{name}: {run} continued on {facts.num_kept:,} pairs, by `seq2seq new --from`.",
            "docs/fine-tune.md has the measurements behind it. Model and tokenizer are those of "
            "the initial model.",
        ],
        [],
        {
            "data": [Key(key, value, WHY[key]) for key, value in data.items()],
            "training": _training(run, config, updates, size, rate, minutes, trial),
            "decoding": [
                Key("beam", config.decoding.beam, "as the initial model"),
                Key("length_penalty", config.decoding.length_penalty, "as the initial model"),
            ],
        },
    )
    expected = duration(min(minutes, updates * size / trial.tokens_per_second / 60 / 0.9))
    return text, f"expect: {expected} of training, {updates:,} updates"


def peak_rate(training: TrainingConfig, dim: int) -> float:
    """Return the highest learning rate of a schedule."""
    if training.schedule != "noam":
        return training.lr
    return training.lr * float(dim * training.warmup_steps) ** -0.5


WHY = {
    "source": "as the initial model",
    "target": "as the initial model",
    "train": "the new corpora; then the old ones, so that they are not forgotten",
    "dev": "new: it chooses the best model",
    "test": "new",
    "dev_size": "pairs held out as the development set: it chooses the best model",
    "test_size": "pairs held out as the test set",
    "clean": "as the initial model",
}


def _old_corpora(run: Path, config: Config, num_new: int) -> list[dict[str, Any]]:
    """Return the corpora of the initial model, weighted so that they are OLD_SHARE of the pairs."""
    if not config.data.train:
        logger.warning("%s does not say what it was trained on: its data cannot be mixed in", run)
        return []
    try:
        tokenizer = Tokenizer.load(find_model(run))
        counts = split_of_run(config, run, "train", tokenizer).facts("train")["pairs_per_corpus"]
    except UserError as error:
        logger.warning("the old data cannot be mixed in, so that more is forgotten: %s", error)
        return []
    total = sum(c * each.weight for c, each in zip(counts, config.data.train, strict=True))
    factor = OLD_SHARE / (1 - OLD_SHARE) * num_new / max(1.0, total)
    corpora = []
    for each in config.data.train:
        tree = {key: value for key, value in to_tree(each).items() if value is not None}
        corpora.append(tree | {"weight": float(f"{min(1000.0, each.weight * factor):.3g}")})
    return corpora


def _for_trial(config: Config, data: dict[str, Any]) -> Config:
    training = replace(config.training, init_from=None, schedule="cosine", lr=1e-4)
    return replace(config, training=training)


def _training(
    run: Path,
    config: Config,
    updates: int,
    size: int,
    rate: float,
    minutes: float,
    trial: Trial,
) -> Sequence[Key]:
    before = config.training
    share = "a quarter" if rate >= RATE * peak_rate(before, config.model.dim) else "a sixteenth"
    return [
        Key("init_from", str(run), "the model to start from"),
        Key("max_steps", updates, f"some {EPOCHS} repetitions of the new pairs"),
        Key("max_minutes", minutes, "at most"),
        Key("batch_tokens", size, "target tokens per update"),
        Key("micro_batch_tokens", min(before.micro_batch_tokens, 8192), "in memory at once"),
        Key("optimizer", before.optimizer, "as the initial model"),
        Key("schedule", "cosine", "linear warm-up, then down to zero"),
        Key("lr", float(f"{rate:.3g}"), f"{share} of the initial model's: higher forgets more"),
        Key("warmup_steps", max(10, updates // 20), "updates"),
        *([Key("clip_norm", before.clip_norm, "as the initial model")] if before.clip_norm else []),
        Key("validate_every", max(20, rounded(updates / 5)), "updates, on both development sets"),
        Key("validate_every_epochs", None, "not by epochs"),
        Key("validation_sentences", 300, "of each development set, to save time"),
        Key("log_every", 20, "updates"),
    ]
