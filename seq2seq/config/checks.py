"""Validate the values of a recipe, beyond their types and bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from seq2seq.config.data import TextConfig
from seq2seq.config.schema import TASKS, Config
from seq2seq.config.trees import leaves, to_tree
from seq2seq.errors import UserError, short
from seq2seq.text.protect import compile_patterns


def require(condition: bool, message: str) -> None:
    """Raise UserError with a message unless a condition holds."""
    if not condition:
        raise UserError(message)


def check_values(config: Config) -> None:
    """Raise UserError for an invalid combination of values."""
    model, training, tokenizer = config.model, config.training, config.tokenizer
    check_name(config.name)
    require(
        model.dim % model.num_heads == 0,
        f"model.dim={model.dim} is not divisible by model.num_heads={model.num_heads}",
    )
    width = model.dim // model.num_heads if model.positions == "rotary" else model.dim
    require(width % 2 == 0, f"model.positions={model.positions} needs an even width, not {width}")
    best_by = TASKS[config.task].best_by
    require(
        training.best_by in best_by,
        f"training.best_by={training.best_by} is not available for task={config.task}: use "
        f"{' or '.join(best_by)}",
    )
    require(
        training.average_last <= training.keep_last,
        f"training.average_last={training.average_last} exceeds training.keep_last="
        f"{training.keep_last}: raise training.keep_last",
    )
    require(
        len(tokenizer.models) in ((0, 1) if tokenizer.shared else (0, 2)),
        f"tokenizer.models has {len(tokenizer.models)} files: give one with tokenizer.shared=true, "
        "or two (source, target) with tokenizer.shared=false",
    )
    if isinstance(config.data, TextConfig):
        _check_text(config.data)
    else:
        _check_pairs(config)
    require_effects(config)


def require_effects(config: Config) -> None:
    """Raise UserError if a key (or section) without effect differs from its default."""
    defaults = leaves(to_tree(TASKS[config.task].defaults))
    values = leaves(to_tree(config))
    for condition, keys in _without_effect(config):
        unused = tuple(f"{key}." for key in keys)
        for key, value in values.items():
            if f"{key}.".startswith(unused) and value != defaults[key]:
                raise UserError(f"{key}={short(value)} has no effect {condition}: leave it out")


def _without_effect(config: Config) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield conditions that hold for a recipe, with the keys that have no effect under them."""
    model, tokenizer, training = config.model, config.tokenizer, config.training
    yield f"for task={config.task}", TASKS[config.task].unused
    if config.translates and not config.pairs.protect:
        yield "without data.protect", ["data.augment.copy"]
    if config.translates and model.positions != "learned":
        yield f"with model.positions={model.positions}", ["model.context"]
    if tokenizer.kind != "bpe":
        yield f"with tokenizer.kind={tokenizer.kind}", ["tokenizer.bpe_dropout"]
    if training.schedule != "cosine":
        yield f"with training.schedule={training.schedule}", ["training.lr_end"]
    if not config.decoding.sample:
        keys = "temperature", "top_k", "top_p", "seed"
        yield "without decoding.sample", [f"decoding.{key}" for key in keys]


def check_name(name: str) -> None:
    """Raise UserError for a name that is not a valid folder name."""
    require(
        "/" not in name and not name.startswith("."),
        f"name={name!r} must be a folder name without slashes or a leading dot",
    )


def _check_pairs(config: Config) -> None:
    data, model = config.pairs, config.model
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
    if not config.translates:
        return
    for key, language in [("data.source", data.source), ("data.target", data.target)]:
        require(bool(language.strip()), f"{key} is empty: give the language, such as {key}=en")
    compile_patterns(data.protect, "data.protect")
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


def _check_text(data: TextConfig) -> None:
    require(data.text is not None, "data.text is empty: give a text, such as data.text=my.txt")
    dev, test = data.dev_share, data.test_share
    require(
        0 < dev < 1 - test,
        f"data.dev_share={dev} and data.test_share={test} must sum to less than 1, and "
        "data.dev_share must be above 0",
    )
