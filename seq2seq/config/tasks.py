"""Defaults and unused keys of each task's recipes."""

from __future__ import annotations

from dataclasses import dataclass

from seq2seq.config.data import LabelledConfig, TextConfig
from seq2seq.config.schema import Config, ModelConfig, TrainingConfig


@dataclass(frozen=True)
class TaskRecipe:
    """Rules for the recipes of a task."""

    defaults: Config
    """Recipe with the default of every key."""
    unused: tuple[str, ...]
    """Keys and sections without effect."""
    best_by: tuple[str, ...]
    """Valid values of `training.best_by`."""


TASKS = {
    "translation": TaskRecipe(
        defaults=Config(),
        unused=("model.pooling",),
        best_by=("bleu", "nll"),
    ),
    "classification": TaskRecipe(
        defaults=Config(
            task="classification",
            data=LabelledConfig(),
            model=ModelConfig(decoder_layers=0),
            training=TrainingConfig(best_by="accuracy"),
        ),
        unused=(
            "data.clean.max_len",
            "data.clean.max_ratio",
            "data.clean.languages",
            "data.augment",
            "data.protect",
            "data.tokenized",
            "tokenizer.shared",
            "model.decoder_layers",
            "model.tied",
            "decoding",
        ),
        best_by=("accuracy", "nll"),
    ),
    "language_model": TaskRecipe(
        defaults=Config(
            task="language_model",
            data=TextConfig(),
            model=ModelConfig(encoder_layers=0),
            training=TrainingConfig(best_by="nll"),
        ),
        unused=(
            "tokenizer.shared",
            "tokenizer.bpe_dropout",
            "model.encoder_layers",
            "model.pooling",
            "decoding",
        ),
        best_by=("nll",),
    ),
}
"""Rules for recipes, by the value of the key `task`."""
