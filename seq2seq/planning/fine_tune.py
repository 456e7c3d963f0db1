"""`seq2seq new --from RUN`: recipes that fine-tune a model on new data without forgetting."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from seq2seq.config import Config, CorpusConfig, PairsConfig, commented_yaml, from_tree, with_paths
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError
from seq2seq.evaluation.systems import split_of_run
from seq2seq.formats.model_directory import describe_model, find_model, vocabulary_files
from seq2seq.planning.plan import COMMENTS, Request, rounded, run_trial
from seq2seq.terminal import duration
from seq2seq.training.records import corpus_files, current_path
from seq2seq.training.schedule import learning_rate

LR_FRACTION = 0.25
"""Peak learning rate as a fraction of the initial model's."""
LR_FRACTION_NEW_ONLY = 1 / 16
"""Fraction if no old data are mixed in: the model forgets less, and learns less."""
EPOCHS = 30
"""Maximum number of repetitions of the new data."""
MIN_UPDATES = 100
MIN_HELD_OUT, MAX_HELD_OUT = 20, 500
"""Bounds of the size of the development and of the test set (else a fifth of the new pairs)."""

logger = logging.getLogger(__name__)


def initial_model(run: Path, source: str, target: str) -> Config:
    """Return the recipe of the initial model. Raises UserError if it is unsuitable.

    source, target: the languages required by the user, or empty.
    """
    config, _ = describe_model(find_model(run))
    if not config.translates:
        raise UserError(f"--from: {run} does not translate: its task is {config.task}")
    languages = config.pairs.source, config.pairs.target
    if (source or languages[0], target or languages[1]) != languages:
        raise UserError(f"--from: {run} is for {' to '.join(languages)}: omit the languages")
    return with_paths(config, partial(current_path, run=run))


def fine_tuning(request: Request, run: Path, config: Config) -> str:
    """Return a recipe for fine-tuning; log the expected cost.

    config: recipe of the initial model, in `run`.
    """
    minutes, initial = request.minutes, config.training
    held_out = max(MIN_HELD_OUT, min(MAX_HELD_OUT, request.num_examples // 5))
    sizes = {f"{split}_size": held_out for split in ("dev", "test") if split not in request.data}
    num_new = request.num_examples - sum(sizes.values())
    data = {**request.data, **sizes}
    if config.pairs.protect:
        data["protect"] = list(config.pairs.protect)
    if rates := {name: rate for name, rate in asdict(config.pairs.augment).items() if rate}:
        data["augment"] = rates
    if old := _old_data(run, config, num_new):
        data |= {"train": [*data["train"], *old["train"]], "exclude": old["exclude"]}
    trial = run_trial(
        replace(
            config,
            name=request.name,
            data=from_tree(PairsConfig(), data, "the new recipe", "data"),
            tokenizer=replace(config.tokenizer, models=vocabulary_files(find_model(run))),
        )
    )
    size = min(initial.batch_tokens, 4096)
    tokens = min(EPOCHS * trial.tokens_per_epoch, trial.tokens_per_minute * minutes)
    updates = max(MIN_UPDATES, rounded(tokens / size))
    epochs = min(EPOCHS, updates * size / trial.tokens_per_epoch)
    fraction = LR_FRACTION if old else LR_FRACTION_NEW_ONLY
    peak = learning_rate(initial, config.model.dim, initial.warmup_steps)
    recipe = {
        "data": data,
        "training": {
            "init_from": str(run),
            "max_steps": updates,
            "max_minutes": minutes,
            "batch_tokens": size,
            "micro_batch_tokens": min(initial.micro_batch_tokens, 8192),
            "optimizer": initial.optimizer,
            "schedule": "cosine",
            "lr": float(f"{fraction * peak:.3g}"),
            "warmup_steps": max(10, updates // 20),
            "clip_norm": initial.clip_norm,
            "validate_every": max(20, rounded(updates / 5)),
            "validate_every_epochs": None,
            "validation_sentences": 300,  # to save time
            "log_every": 20,
        },
        "decoding": {
            "beam": config.decoding.beam,
            "length_penalty": config.decoding.length_penalty,
        },
    }
    kept = "training.optimizer", "training.clip_norm", "decoding.beam", "decoding.length_penalty"
    comments = {
        "training.max_steps": f"About {epochs:.2g} epochs of the new pairs",
        "training.lr": f"{fraction:.4g} x the initial model's; higher forgets more",
        **dict.fromkeys(kept, "As in the initial model"),
    }
    expected = duration(min(minutes, updates * size / trial.tokens_per_minute))
    logger.info("expected: %s of training, %s updates", expected, f"{updates:,}")
    title = f"""\
# {request.name}: fine-tunes {run} on {num_new:,} pairs. Written by `seq2seq new --from`.
# Measurements: docs/fine-tune.md. Model and tokenizer: as in the initial model.
"""
    return title + commented_yaml(recipe, COMMENTS | comments)


def _old_data(run: Path, config: Config, num_new: int) -> dict[str, list[Any]]:
    """Return the initial model's corpora, weighted to a total of `num_new` pairs per epoch.

    Also returns its development and test set, to be excluded. Sets that were held out are files in
    the prepared data. Warns and returns {} if the corpora are unknown or missing.
    """
    try:
        if missing := [str(file) for file in corpus_files(run) if not file.exists()]:
            raise UserError(f"{missing[0]} not found")
        data = split_of_run(config, run, "train", Tokenizer.load(find_model(run)))
    except UserError as error:
        logger.warning(
            "cannot mix in the old training data (%s): the model will forget more of its old "
            "domain",
            error,
        )
        return {}
    corpora, sizes = config.pairs.train, data.facts("train")["pairs_per_corpus"]
    weighted = sum(size * corpus.weight for size, corpus in zip(sizes, corpora, strict=True))
    train = [
        _tree(corpus) | {"weight": float(f"{num_new / weighted * corpus.weight:.3g}")}
        for corpus in corpora
    ]
    exclude = [
        _tree(corpus) if corpus else str((data.folder / split).absolute())
        for split, corpus in (("dev", config.pairs.dev), ("test", config.pairs.test))
        if split in data.manifest["splits"]
    ]
    return {"train": train, "exclude": exclude}


def _tree(corpus: CorpusConfig) -> dict[str, Any]:
    """Return the keys of a corpus that differ from their defaults."""
    default = vars(CorpusConfig())
    return {key: value for key, value in vars(corpus).items() if value != default[key]}
