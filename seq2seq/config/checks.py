"""Validate the values of a recipe, beyond their types and bounds."""

from __future__ import annotations

from seq2seq.config.schema import Config, DecodingConfig
from seq2seq.config.tasks import TASKS, require

LONGEST_NAME = 200
"""Of a recipe, in bytes: the longest file names have 255."""


def check_values(config: Config) -> None:
    """Raise UserError for an invalid combination of values."""
    check_decoding(config.decoding)
    check_name(config.name)
    check_model(config)
    model, training, tokenizer = config.model, config.training, config.tokenizer
    task = TASKS[config.task]
    require(
        not training.lr_end or (training.schedule == "cosine" and training.lr_end <= training.lr),
        f"training.lr_end={training.lr_end} is where training.schedule=cosine ends, at most at "
        f"training.lr={training.lr}",
    )
    require(
        training.best_by in task.best_by,
        f"training.best_by={training.best_by} is not measured for task={config.task}; use "
        f"{' or '.join(task.best_by)}",
    )
    require(
        training.average_last <= training.keep_last,
        f"training.average_last={training.average_last} exceeds training.keep_last="
        f"{training.keep_last}: keep as many checkpoints",
    )
    dropouts = model.dropout, model.attention_dropout, model.activation_dropout
    require(
        not training.r_drop or any(dropouts),
        f"training.r_drop={training.r_drop} needs model.dropout: without it both passes are equal",
    )
    require(
        tokenizer.kind == "bpe" or not tokenizer.bpe_dropout,
        "tokenizer.bpe_dropout is for tokenizer.kind=bpe: characters have no merges to drop",
    )
    require(
        len(tokenizer.models) in ((0, 1) if tokenizer.shared else (0, 2)),
        f"tokenizer.models names {len(tokenizer.models)} models: one is needed with "
        "tokenizer.shared=true, two (source, target) with tokenizer.shared=false",
    )
    task.check(config)


def check_model(config: Config) -> None:
    """Raise UserError for a model that cannot be built."""
    model = config.model
    require(
        model.dim % model.num_heads == 0,
        f"model.dim={model.dim} is not divisible by model.num_heads={model.num_heads}",
    )
    require(model.dim % 2 == 0, f"model.dim={model.dim} must be even, for as many sines as cosines")
    require(
        model.positions != "rotary" or model.dim // model.num_heads % 2 == 0,
        f"model.positions=rotary rotates pairs of dimensions, but a head has "
        f"model.dim/model.num_heads={model.dim // model.num_heads}",
    )
    task = TASKS[config.task]
    for stack in ("encoder", "decoder"):
        key = f"{stack}_layers"
        depth = getattr(model, key)
        if getattr(task.defaults.model, key):
            require(depth >= 1, f"model.{key}={depth} must be at least 1")
        else:
            other = "decoder" if stack == "encoder" else "encoder"
            require(
                depth == 0,
                f"model.{key}={depth}: task={config.task} has no {stack}; its depth is "
                f"model.{other}_layers",
            )


def check_decoding(decoding: DecodingConfig) -> None:
    """Raise UserError for an invalid combination of values of the section `decoding`."""
    if not decoding.sample:
        for key in ("temperature", "top_k", "top_p", "seed"):
            value = getattr(decoding, key)
            require(
                value == getattr(DecodingConfig(), key),
                f"decoding.{key}={value} has no effect without decoding.sample",
            )


def check_name(name: str) -> None:
    """Raise UserError for a name that a folder cannot have."""
    require(
        not name.startswith(".")
        and not any(c in "/\\" or not c.isprintable() for c in name)
        and len(name.encode()) <= LONGEST_NAME,
        f"name={name!r} must be a folder's name: at most {LONGEST_NAME} bytes, without slashes or "
        "control characters, and without a dot at the beginning",
    )
