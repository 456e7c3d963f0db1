"""The tasks as recipes have them: defaults, keys without effect, checks."""

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
    """Recipes of a task."""

    defaults: Config
    """The recipe in which every key has its default."""
    unused: tuple[str, ...]
    """Keys and sections that have no effect."""
    best_by: tuple[str, ...]
    """Metrics of validations that can select the best model."""
    check: Callable[[Config], None]
    """Raises UserError for values that do not fit the task."""


def require(fact: bool, message: str) -> None:
    """Raise UserError with a message unless a fact holds."""
    if not fact:
        raise UserError(message)


def _check_pairs(config: Config) -> None:
    """Raise UserError for a section `data` of pairs that misses a split, or has one twice."""
    data = config.pairs
    require(bool(data.train), "data.train is empty: name a corpus, such as data.train=my/corpus")
    for split in ("dev", "test"):
        size = getattr(data, f"{split}_size")
        require(
            not (getattr(data, split) and size),
            f"data.{split} and data.{split}_size={size} exclude each other: leave one of them out "
            f"(data.{split}=null or data.{split}_size=0)",
        )
    require(
        bool(data.dev or data.dev_size),
        "no development set: name it with data.dev=PREFIX, or hold one out with data.dev_size=1000",
    )
    require(
        config.tokenizer.kind != "byte",
        "tokenizer.kind=byte is for language models; bpe and char cover all bytes too",
    )


def _check_translation(config: Config) -> None:
    data, model = config.pairs, config.model
    for key, language in [("data.source", data.source), ("data.target", data.target)]:
        require(bool(language.strip()), f"{key} is empty: name the language, such as {key}=en")
    _check_pairs(config)
    max_len = data.clean.max_len
    require(
        model.positions != "learned" or (max_len is not None and max_len < model.context),
        f"model.positions=learned has model.context={model.context} positions, so "
        f"data.clean.max_len={max_len} must be below that",
    )
    for tag in [corpus.tag for corpus in data.corpora if corpus.tag is not None]:
        require(
            bool(tag) and not any(c.isspace() or c == "\u2581" for c in tag),
            f"data: tag={tag!r} must be one symbol without spaces, such as <news>",
        )


def _check_language_model(config: Config) -> None:
    data, text = config.text, config.text.text
    if text is None:
        raise UserError("data.text is empty: name a text, such as data.text=my.txt")
    dev, test = data.dev_share, data.test_share
    require(
        0 < dev < 1 and 0 <= test < 1 and dev + test < 1,
        f"data.dev_share={dev} and data.test_share={test} must be fractions that sum to less "
        "than 1, the first above 0",
    )
    require(not text.tag and text.weight == 1, "data.text: tag and weight are for corpora")


def _check_classification(config: Config) -> None:
    data = config.pairs
    _check_pairs(config)
    require(not any(corpus.tag for corpus in data.corpora), "data: a tag is for translation")


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
"""The values of the key `task`."""
