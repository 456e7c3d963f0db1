"""Validate the values of a recipe, beyond their types."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any, get_args, get_type_hints

from seq2seq.config.schema import Bounds, Config, DecodingConfig
from seq2seq.errors import UserError, shown

_SPECIAL_SYMBOL = re.compile(r"<(unk|s|/s|pad|0x[0-9A-F]{2})>")

LONGEST_NAME = 200
"""Of a recipe, in bytes: the longest file names have 255."""

UNUSED_KEYS = {
    "translation": ["data.dev_share", "data.test_share", "model.pooling"],
    "language_model": ["data.dev_size", "data.test_size", "data.clean", "data.target",
                       "data.tokenized", "tokenizer.shared", "model.pooling", "decoding"],
    "classification": ["data.dev_share", "data.test_share", "data.clean.max_len",
                       "data.clean.max_ratio", "data.clean.languages", "data.tokenized",
                       "tokenizer.shared", "model.tied", "decoding"],
}  # fmt: skip
"""Keys and sections that have no effect for each task."""


def check_values(config: Config) -> None:
    """Raise UserError for an invalid value or combination of values."""
    check_bounds(config)
    check_decoding(config.decoding)
    check_name(config.name)
    check_model(config)
    model, training, tokenizer = config.model, config.training, config.tokenizer
    data, require = config.data, _require
    require(
        not training.lr_end or (training.schedule == "cosine" and training.lr_end <= training.lr),
        f"training.lr_end={training.lr_end} is where training.schedule=cosine ends, at most at "
        f"training.lr={training.lr}",
    )
    best_by = {"language_model": {"nll"}, "classification": {"nll", "accuracy"}}
    possible = best_by.get(config.task, {"bleu", "nll"})
    require(
        training.best_by in possible,
        f"training.best_by={training.best_by} is not measured for task={config.task}; use "
        f"{' or '.join(sorted(possible))}",
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
    _CHECKS[config.task](config)
    _check_unused(config)
    for named in (*data.train, data.dev, data.test):
        if named and named.tag is not None:
            _check_tag(named.tag)


def _check_tag(tag: str) -> None:
    _require(
        bool(tag) and not any(c.isspace() or c == "\u2581" for c in tag),
        f"data: tag={tag!r} must be one symbol without spaces, such as <news>",
    )
    _require(
        not _SPECIAL_SYMBOL.fullmatch(tag),
        f"data: tag={tag} is a special symbol of the tokenizer; choose another name",
    )


def check_model(config: Config) -> None:
    """Raise UserError for a model that cannot be built."""
    model, require = config.model, _require
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
    stacks = {"language_model": ["decoder"], "classification": ["encoder"]}
    for stack in stacks.get(config.task, ["encoder", "decoder"]):
        depth = getattr(model, f"{stack}_layers")
        require(depth >= 1, f"model.{stack}_layers={depth} must be at least 1")


def check_decoding(decoding: DecodingConfig) -> None:
    """Raise UserError for an invalid value or combination of values of the section `decoding`."""
    check_bounds(decoding, "decoding.")
    groups, beam = decoding.diverse_groups, decoding.beam
    _require(
        beam % groups == 0,
        f"decoding.beam={beam} is not divisible by decoding.diverse_groups={groups}",
    )
    _require(
        not (decoding.sample and groups > 1),
        "decoding.sample draws every translation alone: leave decoding.diverse_groups out",
    )
    if not decoding.sample:
        for key in ("temperature", "top_k", "top_p", "seed"):
            value = getattr(decoding, key)
            _require(
                value == getattr(DecodingConfig(), key),
                f"decoding.{key}={value} has no effect without decoding.sample",
            )


def check_bounds(config: Any, section: str = "") -> None:
    """Raise UserError for a number outside of the bounds that the schema gives for its key."""
    hints = get_type_hints(type(config), include_extras=True)
    for each in fields(config):
        value, key = getattr(config, each.name), f"{section}{each.name}"
        for below in value if isinstance(value, tuple) else (value,):
            if is_dataclass(below):
                check_bounds(below, f"{key}.")
        options = get_args(hints[each.name])
        bounds = [b for hint in (hints[each.name], *options) for b in _bounds_of(hint)]
        missed = next((b for b in bounds if value is not None and not b.contain(value)), None)
        if missed:
            none = ", or null for none" if type(None) in options else ""
            raise UserError(f"{key}={shown(value)} must be {missed.text}{none}")


def _bounds_of(hint: Any) -> list[Bounds]:
    return [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Bounds)]


def _require(fact: bool, message: str) -> None:
    if not fact:
        raise UserError(message)


def check_name(name: str) -> None:
    """Raise UserError for a name that a folder cannot have."""
    _require(
        not name.startswith(".")
        and not any(c in "/\\" or not c.isprintable() for c in name)
        and len(name.encode()) <= LONGEST_NAME,
        f"name={name!r} must be a folder's name: at most {LONGEST_NAME} bytes, without slashes or "
        "control characters, and without a dot at the beginning",
    )


def _check_unused(config: Config) -> None:
    data, model, tokenizer = config.data, config.model, config.tokenizer
    unused = dict.fromkeys(UNUSED_KEYS[config.task], "")
    if config.task == "language_model" and tokenizer.kind != "bpe":
        kind = f" with tokenizer.kind={tokenizer.kind}"
        unused |= {"tokenizer.vocab_size": kind, "tokenizer.sample": kind}
    if config.task == "language_model" and data.text and data.text.path:
        unused["data.source"] = " with a text from files"
    corpora = [corpus for corpus in (*data.train, data.dev, data.test) if corpus]
    if config.task == "classification" and not any(corpus.dataset for corpus in corpora):
        unused |= dict.fromkeys(("data.source", "data.target"), " with texts from files")
    if config.task == "translation" and model.positions != "learned":
        unused["model.context"] = f" with model.positions={model.positions}"
    defaults = Config()
    for section, why in unused.items():
        default, keys = attrgetter(section)(defaults), [section]
        if is_dataclass(default):
            keys = [f"{section}.{each.name}" for each in fields(default)]
        for key in keys:
            value = attrgetter(key)(config)
            _require(
                value == attrgetter(key)(defaults),
                f"{key}={value} has no effect for task={config.task}{why}: leave it out",
            )


def _check_translation(config: Config) -> None:
    data, model = config.data, config.model
    for key, language in [("data.source", data.source), ("data.target", data.target)]:
        _require(bool(language.strip()), f"{key} is empty: name the language, such as {key}=en")
    _check_corpora(config)
    max_len = data.clean.max_len
    _require(
        model.positions != "learned" or (max_len is not None and max_len < model.context),
        f"model.positions=learned has model.context={model.context} positions, so "
        f"data.clean.max_len={max_len} must be below that",
    )


def _check_language_model(config: Config) -> None:
    data, model, tokenizer = config.data, config.model, config.tokenizer
    _require(data.text is not None, "data.text is empty: name a text, such as data.text=mybook.txt")
    _require(
        not data.train and not data.dev and not data.test,
        "a language model reads data.text and holds out data.dev_share and data.test_share of it: "
        "leave data.train, data.dev and data.test out",
    )
    dev, test = data.dev_share, data.test_share
    _require(
        0 < dev < 1 and 0 <= test < 1 and dev + test < 1,
        f"data.dev_share={dev} and data.test_share={test} must be fractions that sum to less "
        "than 1, the first above 0",
    )
    _require(
        model.encoder_layers == 0,
        f"model.encoder_layers={model.encoder_layers}: a language model has only a decoder; its "
        "depth is model.decoder_layers",
    )
    text = data.text
    _require(
        not (text and (text.tag or text.weight != 1)), "data.text: tag and weight are for corpora"
    )
    _require(
        not tokenizer.bpe_dropout,
        "tokenizer.bpe_dropout is not for language models, whose text is tokenised only once",
    )


def _check_classification(config: Config) -> None:
    model, data = config.model, config.data
    _check_corpora(config)
    _require(
        not any(corpus and corpus.tag for corpus in (*data.train, data.dev, data.test)),
        "data: a tag is for translation",
    )
    _require(
        model.decoder_layers == 0,
        f"model.decoder_layers={model.decoder_layers}: a classifier has only an encoder; its "
        "depth is model.encoder_layers",
    )


def _check_corpora(config: Config) -> None:
    data = config.data
    _require(
        data.text is None,
        f"data.text is for task=language_model; task={config.task} has data.train",
    )
    _require(bool(data.train), "data.train is empty: name a corpus, such as data.train=my/corpus")
    _require(
        not (data.dev and data.dev_size) and not (data.test and data.test_size),
        "data.dev and data.dev_size (or data.test and data.test_size) exclude each other: leave "
        "one of them out",
    )
    _require(
        bool(data.dev or data.dev_size),
        "no development set: name it with data.dev=PREFIX, or hold one out with data.dev_size=1000",
    )
    _require(
        config.tokenizer.kind != "byte",
        "tokenizer.kind=byte is for language models; bpe and char cover all bytes too",
    )


_CHECKS = {
    "translation": _check_translation,
    "language_model": _check_language_model,
    "classification": _check_classification,
}
