"""`seq2seq new --from RUN`: a recipe that continues a model on other data without forgetting."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seq2seq.config import Config, TrainingConfig
from seq2seq.data.prepared import PreparedData
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError
from seq2seq.evaluation.test_sets import split_of_run
from seq2seq.model.saved import describe_model, find_model
from seq2seq.planning.corpus import CorpusFacts
from seq2seq.planning.files import opened
from seq2seq.planning.plan import rounded
from seq2seq.planning.recipe_text import Key, recipe_text
from seq2seq.planning.splits import (
    held_out_sources,
    known_sources,
    sample_of,
    split,
    write_pairs,
)
from seq2seq.planning.trial import run_trial
from seq2seq.progress_bar import duration
from seq2seq.task import load_task

OLD_SHARE = 0.5
"""Of the old data among the pairs of an epoch."""
RATE = 0.25
"""Peak learning rate, relative to that of the initial model."""
RATE_ALONE = 1 / 16
"""The same where the old data are gone: it forgets less, and learns less."""
EPOCHS = 30
"""Repetitions of the new data."""
FEWEST_UPDATES = 100
FEWEST_HELD_OUT, MOST_HELD_OUT = 20, 500
"""New pairs held out, a fifth of all, for each of the development and the test set."""
FEW_HELD_OUT = 200
"""Sentences below which there is a warning."""

logger = logging.getLogger(__name__)


def initial_model(run: Path) -> Config:
    """Return the recipe of the model to start from; raises UserError if it does not translate."""
    config, _ = describe_model(find_model(run))
    if not load_task(config.task).translates:
        raise UserError(f"--from: {run} does not translate: its task is {config.task}")
    return config


def fine_tuning(
    name: str, run: Path, config: Config, data: dict[str, Any], facts: CorpusFacts, minutes: float
) -> tuple[str, str]:
    """Write the files of a fine-tuning to data/NAME; return its recipe, and what to expect.

    config: of the initial model, in `run`. data: section `data`, with the new corpora.
    """
    folder = Path("data") / name
    if folder.exists():
        raise UserError(f"{folder}, for the files of this recipe, exists: take another name")
    trial = run_trial(config, facts.sample)
    data, num_new, has_old = _write_data(folder, run, config, data, facts)
    per_epoch = num_new * trial.tokens_per_example / (1 - OLD_SHARE if has_old else 1)
    possible = trial.tokens_per_second * 60 * minutes * 0.9
    size = min(config.training.batch_tokens, 4096)
    updates = max(FEWEST_UPDATES, rounded(min(EPOCHS * per_epoch, possible) / size))
    share = RATE if has_old else RATE_ALONE
    text = recipe_text(
        [
            f"{name}: {run} continued on {num_new:,} pairs, by `seq2seq new --from`.",
            "docs/fine-tune.md has the measurements behind it. Model and tokenizer are those of "
            "the initial model.",
        ],
        [],
        {
            "data": [Key(key, value, WHY[key]) for key, value in data.items()],
            "training": _training(run, config, updates, size, share, minutes),
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
    "train": "new pairs; then old ones, so that the old domain is not forgotten",
    "dev": "new pairs: they choose the best model",
    "test": "new pairs: for `seq2seq evaluate`, once",
}


def _write_data(
    folder: Path, run: Path, config: Config, data: dict[str, Any], facts: CorpusFacts
) -> tuple[dict[str, Any], int, bool]:
    """Write training and held-out pairs.

    Returns the section `data` that names them, the number of new training pairs, and whether old
    ones are mixed in.
    """
    languages = data["source"], data["target"]
    old = _prepared(run, config)
    size = max(FEWEST_HELD_OUT, min(MOST_HELD_OUT, facts.num_kept // 5))
    dev_size, test_size = (0 if name in data else size for name in ("dev", "test"))
    corpora = opened(data)
    if old:
        found = split(
            corpora, dev_size, test_size,
            forbidden=held_out_sources(old), known=known_sources(old),
        )  # fmt: skip
    else:
        found = split(corpora, dev_size, test_size)
    if found.left_out:
        logger.warning(
            "%d new pair(s) are left out: their sources are in the development or test set of %s",
            found.left_out, run,
        )  # fmt: skip
    own = {"train": found.train, "dev": found.dev, "test": found.test}
    own |= {"old": sample_of(old, len(found.train) * EPOCHS)} if old else {}
    for name, pairs in own.items():
        if pairs:
            write_pairs(folder / name, languages, pairs)
    held_out = {name: str(folder / name) for name in ("dev", "test") if own[name]}
    train: list[Any] = [str(folder / "train")]
    if old:
        weight = OLD_SHARE / (1 - OLD_SHARE) * len(found.train) / max(1, len(own["old"]))
        train.append({"path": str(folder / "old"), "weight": float(f"{weight:.3g}")})
    if found.dev and len(found.dev) < FEW_HELD_OUT:
        logger.warning(
            "the development set has only %d sentences: its BLEU varies by some points; name a "
            "larger one with --dev", len(found.dev),
        )  # fmt: skip
    return {**data, "train": train, **held_out}, len(found.train), old is not None


def _prepared(run: Path, config: Config) -> PreparedData | None:
    """Return the data that the initial model was trained on; None, with a warning, without them."""
    try:
        if not config.pairs.train:
            raise UserError(f"{run} does not say what it was trained on")
        data = split_of_run(config, run, "train", Tokenizer.load(find_model(run)))
        return PreparedData.load(data.folder)
    except UserError as error:
        logger.warning("the old data cannot be mixed in, so that more is forgotten: %s", error)
        return None


def _training(
    run: Path,
    config: Config,
    updates: int,
    size: int,
    share: float,
    minutes: float,
) -> Sequence[Key]:
    before = config.training
    rate = share * peak_rate(before, config.model.dim)
    return [
        Key("init_from", str(run), "the model to start from"),
        Key("max_steps", updates, f"some {EPOCHS} repetitions of the new pairs"),
        Key("max_minutes", minutes, "at most"),
        Key("batch_tokens", size, "target tokens per update"),
        Key("micro_batch_tokens", min(before.micro_batch_tokens, 8192), "in memory at once"),
        Key("optimizer", before.optimizer, "as the initial model"),
        Key("schedule", "cosine", "linear warm-up, then down to zero"),
        Key("lr", float(f"{rate:.3g}"), f"{share:.4g} of the initial model's: higher forgets more"),
        Key("warmup_steps", max(10, updates // 20), "updates"),
        *([Key("clip_norm", before.clip_norm, "as the initial model")] if before.clip_norm else []),
        Key("validate_every", max(20, rounded(updates / 5)), "updates, on both development sets"),
        Key("validate_every_epochs", None, "not by epochs"),
        Key("validation_sentences", 300, "of each development set, to save time"),
        Key("log_every", 20, "updates"),
    ]
