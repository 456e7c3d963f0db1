"""Validate the values of a recipe, beyond their types and bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from seq2seq.config.schema import Config, DecodingConfig, TextConfig
from seq2seq.config.tasks import TASKS, require
from seq2seq.config.trees import leaves, to_tree
from seq2seq.errors import UserError, short


def check_values(config: Config) -> None:
    """Raise UserError for an invalid combination of values."""
    check_decoding(config.decoding)
    check_name(config.name)
    check_model(config)
    training, tokenizer, task = config.training, config.tokenizer, TASKS[config.task]
    require(
        training.lr_end <= training.lr,
        f"training.lr_end={training.lr_end} exceeds training.lr={training.lr}, the peak",
    )
    require(
        training.best_by in task.best_by,
        f"training.best_by={training.best_by} is not available for task={config.task}: use "
        f"{' or '.join(task.best_by)}",
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
    task.check(config)
    for condition, keys in _conditions(config):
        require_unset(config, condition, keys)


def _conditions(config: Config) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield conditions that hold for a recipe, with the keys that have no effect under them."""
    model, tokenizer, training = config.model, config.tokenizer, config.training
    if config.translates and model.positions != "learned":
        yield f"with model.positions={model.positions}", ["model.context"]
    if tokenizer.kind != "bpe":
        is_text = isinstance(config.data, TextConfig)
        keys = ["tokenizer.vocab_size", "tokenizer.sample"] if is_text else []
        yield f"with tokenizer.kind={tokenizer.kind}", ["tokenizer.bpe_dropout", *keys]
    if training.schedule != "cosine":
        yield f"with training.schedule={training.schedule}", ["training.lr_end"]
    if not (model.dropout or model.attention_dropout or model.activation_dropout):
        yield "without model.dropout", ["training.r_drop"]
    if not (config.translates or any(corpus.dataset for corpus in config.data.corpora)):
        yield "with texts from files", ["data.source", "data.target"]


def require_unset(config: Config, condition: str, keys: Sequence[str]) -> None:
    """Raise UserError if keys (or sections) without effect differ from their defaults.

    condition: why the keys have no effect, for the error.
    """
    unused = tuple(f"{key}." for key in keys)
    defaults = leaves(to_tree(TASKS[config.task].defaults))
    for key, value in leaves(to_tree(config)).items():
        if f"{key}.".startswith(unused) and value != defaults[key]:
            raise UserError(f"{key}={short(value)} has no effect {condition}: leave it out")


def check_model(config: Config) -> None:
    """Raise UserError for a model that cannot be built."""
    model = config.model
    require(
        model.dim % model.num_heads == 0,
        f"model.dim={model.dim} is not divisible by model.num_heads={model.num_heads}",
    )
    require(model.dim % 2 == 0, f"model.dim={model.dim} must be even")
    require(
        model.positions != "rotary" or model.dim // model.num_heads % 2 == 0,
        f"model.positions=rotary needs an even head size, but model.dim / model.num_heads = "
        f"{model.dim // model.num_heads}",
    )
    for key in ("encoder_layers", "decoder_layers"):
        depth, default = getattr(model, key), getattr(TASKS[config.task].defaults.model, key)
        require(depth >= min(1, default), f"model.{key}={depth} must be at least 1")


def check_decoding(decoding: DecodingConfig) -> None:
    """Raise UserError for an invalid combination of values in the section `decoding`."""
    if not decoding.sample:
        keys = [f"decoding.{key}" for key in ("temperature", "top_k", "top_p", "seed")]
        require_unset(replace(Config(), decoding=decoding), "without decoding.sample", keys)


def check_name(name: str) -> None:
    """Raise UserError for a name that is not a valid folder name."""
    require(
        "/" not in name and not name.startswith("."),
        f"name={name!r} must be a folder name without slashes or a leading dot",
    )
