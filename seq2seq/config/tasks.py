"""Defaults, unused keys and checks of each task's recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from seq2seq.config.schema import (
    Config,
    LabelledConfig,
    ModelConfig,
    TextConfig,
    TrainingConfig,
)
from seq2seq.errors import UserError


@dataclass(frozen=True)
class TaskRecipe:
    """Rules for the recipes of a task."""

    defaults: Config
    """Recipe with the default of every key."""
    unused: tuple[str, ...]
    """Keys and sections without effect."""
    best_by: tuple[str, ...]
    """Valid values of `training.best_by`."""
    check: Callable[[Config], None]
    """Raises UserError for values that do not fit the task."""


def require(condition: bool, message: str) -> None:
    """Raise UserError with a message unless a condition holds."""
    if not condition:
        raise UserError(message)


def _check_pairs(config: Config) -> None:
    """Raise UserError if a split is missing from the section `data`, or given twice."""
    data = config.pairs
    require(bool(data.train), "data.train is empty: give a corpus, such as data.train=my/corpus")
    for split in ("dev", "test"):
        size = getattr(data, f"{split}_size")
        require(
            not (getattr(data, split) and size),
            f"data.{split} and data.{split}_size={size} exclude each other: leave one out "
            f"(data.{split}=null or data.{split}_size=0)",
        )
    require(
        bool(data.dev or data.dev_size),
        "no development set: set data.dev=PREFIX, or hold out pairs with data.dev_size=1000",
    )
    require(
        config.tokenizer.kind != "byte",
        "tokenizer.kind=byte is for language models: use bpe or char, which also cover all bytes",
    )


def _check_translation(config: Config) -> None:
    data, model = config.pairs, config.model
    for key, language in [("data.source", data.source), ("data.target", data.target)]:
        require(bool(language.strip()), f"{key} is empty: give the language, such as {key}=en")
    _check_pairs(config)
    max_len = data.clean.max_len
    require(
        model.positions != "learned" or (max_len is not None and max_len < model.context),
        f"model.positions=learned needs data.clean.max_len below model.context={model.context}, "
        f"not {max_len}",
    )
    for tag in [corpus.tag for corpus in data.corpora if corpus.tag is not None]:
        require(
            bool(tag) and not any(c.isspace() or c == "\u2581" for c in tag),
            f"data: tag={tag!r} must be a symbol without spaces, such as <news>",
        )


def _check_language_model(config: Config) -> None:
    data, text = config.text, config.text.text
    if text is None:
        raise UserError("data.text is empty: give a text, such as data.text=my.txt")
    dev, test = data.dev_share, data.test_share
    require(
        0 < dev < 1 and 0 <= test < 1 and dev + test < 1,
        f"data.dev_share={dev} and data.test_share={test} must sum to less than 1, and "
        "data.dev_share must be above 0",
    )
    require(not text.tag and text.weight == 1, "data.text: tag and weight are for parallel corpora")


def _check_classification(config: Config) -> None:
    data = config.pairs
    _check_pairs(config)
    require(not any(corpus.tag for corpus in data.corpora), "data: tag is for translation only")


TASKS = {
    "translation": TaskRecipe(
        defaults=Config(),
        unused=("model.pooling",),
        best_by=("bleu", "nll"),
        check=_check_translation,
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
            "data.tokenized",
            "tokenizer.shared",
            "model.decoder_layers",
            "model.tied",
            "decoding",
        ),
        best_by=("accuracy", "nll"),
        check=_check_classification,
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
        check=_check_language_model,
    ),
}
"""Rules for recipes, by the value of the key `task`."""
