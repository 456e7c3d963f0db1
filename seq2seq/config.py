"""The recipe: frozen dataclasses, read from YAML, overridden by `key=value`, written back whole."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from seq2seq.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class CorpusConfig:
    """Where the pairs of one corpus are: give `path`, or `source` and `target`, or `dataset`."""

    path: str | None = None
    """PREFIX for PREFIX.<source language> and PREFIX.<target language>, or a .tsv; each may end in
    .gz."""
    source: str | None = None
    """File of source sentences, one a line."""
    target: str | None = None
    """File of target sentences, line by line with `source`."""
    dataset: str | None = None
    """Hugging Face data set: a hub name or a local folder."""
    subset: str | None = None
    """The data set's configuration, as `de-en` of wmt14."""
    split: str | None = None
    """The data set's split, as `train`."""
    weight: float = 1.0
    """How often an epoch sees each pair; fractions are drawn anew every epoch."""
    tag: str | None = None
    """Symbol put before each source sentence, as `<news>`."""


@dataclass(frozen=True)
class CleaningConfig:
    """Which training pairs are dropped; development and test sets always come through whole."""

    blank: bool = True
    """Drop pairs with an empty side."""
    max_ratio: float | None = 4.0
    """Drop pairs whose sides differ more in characters (if the longer has over 20)."""
    duplicates: bool = True
    """Drop repetitions of a pair."""
    overlap: bool = True
    """Drop pairs whose source sentence is in the development or test set."""
    max_len: int | None = 256
    """Drop pairs with a side longer than this, in tokens."""


@dataclass(frozen=True)
class DataConfig:
    """Languages and corpora."""

    source: str = ""
    """Source language, as `en`."""
    target: str = ""
    """Target language, as `de`."""
    train: tuple[CorpusConfig, ...] = ()
    dev: CorpusConfig | None = None
    test: CorpusConfig | None = None
    dev_size: int = 0
    """Source sentences held out of train where `dev` is not given."""
    test_size: int = 0
    """Source sentences held out of train where `test` is not given."""
    clean: CleaningConfig = field(default_factory=CleaningConfig)
    store: str = "data/store"
    """Folder that holds the prepared data of every recipe."""


@dataclass(frozen=True)
class TokenizerConfig:
    """SentencePiece, trained by `prepare` or brought along."""

    kind: Literal["bpe", "char"] = "bpe"
    vocab_size: int = 8000
    """Pieces, special symbols and 256 bytes included; for `char` an upper bound."""
    shared: bool = True
    """One model for both languages, or one for each."""
    sample: int = 500_000
    """Pairs that training reads at most."""
    models: tuple[str, ...] = ()
    """SentencePiece models of your own: one shared, or source and target."""
    bpe_dropout: float = 0.0
    """Probability that a merge is left out in training (Provilkov et al. 2020)."""


@dataclass(frozen=True)
class ModelConfig:
    """The shape of the Transformer; the defaults are the paper's base model."""

    dim: int = 512
    ffn_dim: int = 2048
    num_heads: int = 8
    encoder_layers: int = 6
    decoder_layers: int = 6
    dropout: float = 0.1
    norm: Literal["post", "pre"] = "post"
    """Layer normalisation after each residual addition (the paper) or before each sublayer."""


@dataclass(frozen=True)
class TrainingConfig:
    """Updates, rates, batches, and when to look."""

    max_steps: int = 100_000
    """Updates."""
    max_minutes: float | None = None
    """Wall-clock limit of the updates and the validations between them; the last validation comes
    on top."""
    batch_tokens: int = 25_000
    """Target tokens of one update, over all processes."""
    micro_batch_tokens: int = 25_000
    """Padded tokens, of the longer side, that one process holds at once."""
    schedule: Literal["noam", "inverse_sqrt", "cosine"] = "noam"
    lr: float = 1.0
    """Scale of the noam schedule; the peak rate of the other two."""
    warmup_steps: int = 4000
    """Updates."""
    optimizer: Literal["adam", "muon"] = "adam"
    """muon: for the matrices; embeddings, biases and gains stay with adam."""
    adam_beta1: float = 0.9
    adam_beta2: float = 0.98
    adam_eps: float = 1e-9
    clip_norm: float | None = None
    """Largest norm of the whole gradient."""
    label_smoothing: float = 0.1
    seed: int = 1
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 where the processor multiplies it natively, else fp32."""
    validate_every: int | None = None
    """Updates between validations; one more comes at the end."""
    validate_every_epochs: int | None = 1
    """Epochs between validations."""
    validation_sentences: int | None = None
    """Translate only the first so many sentences of the development set."""
    patience: int | None = None
    """Stop after so many validations without a better BLEU."""
    checkpoint_every: int | None = None
    """Updates between checkpoints; one more comes at the end."""
    checkpoint_every_minutes: float | None = 10.0
    checkpoint_every_epochs: int | None = None
    keep_last: int = 5
    """Checkpoints kept."""
    average_last: int = 0
    """Average so many last checkpoints at the end, and keep that model if it is better."""
    log_every: int = 50
    """Updates between lines of metrics.jsonl."""
    tensorboard: bool = False


@dataclass(frozen=True)
class DecodingConfig:
    """Search."""

    beam: int = 4
    """Beam width W; 1 is greedy search."""
    length_penalty: float = 0.6
    """The exponent alpha."""
    penalty_form: Literal["wu", "power"] = "wu"
    """wu: ((5 + length) / 6)^alpha (Wu et al. 2016); power: length^alpha."""
    max_extra: int = 50
    """Tokens that a translation may have beyond its source's."""
    batch_tokens: int = 4096
    """Source tokens times beam width that are decoded at once."""
    validation_beam: int = 1
    """Beam width of the validations during training."""


@dataclass(frozen=True)
class Config:
    """One run, whole."""

    name: str = ""
    """Names the default run directory; by default the recipe's folder."""
    task: Literal["translation"] = "translation"
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a recipe and apply `section.key=value` overrides; raises UserError on any mistake."""
    path = Path(path)
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"recipe not found: {path}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path} is not a readable YAML recipe: {error}") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path} is not a recipe: it holds no `key: value` at its top")
    for override in overrides:
        _apply_override(tree, override)
    if not tree.get("name"):
        tree["name"] = path.resolve().parent.name if path.stem == "recipe" else path.stem
    config = from_tree(Config, tree, str(path))
    _validate(config)
    return config


def to_yaml(config: Config) -> str:
    """Return the whole recipe as YAML, no default left out."""
    return yaml.safe_dump(to_tree(config), sort_keys=False, allow_unicode=True)


def to_tree(config: Any) -> dict[str, Any]:
    """Return a dataclass as plain dictionaries and lists."""
    return dataclasses.asdict(
        config, dict_factory=lambda items: {k: list(v) if isinstance(v, tuple) else v
                                            for k, v in items}
    )  # fmt: skip


def from_tree(cls: type[T], tree: Any, where: str, prefix: str = "") -> T:
    """Build a dataclass from plain dictionaries; `where` names the file in errors."""
    if cls is CorpusConfig and isinstance(tree, str):
        tree = {"path": tree}
    if not isinstance(tree, dict):
        raise UserError(f"{where}: '{prefix}' needs `key: value` lines, not {tree!r}")
    hints = typing.get_type_hints(cls)
    values = {}
    for key, value in tree.items():
        full_key = f"{prefix}.{key}" if prefix else str(key)
        if key not in hints:
            raise UserError(f"{where}: unknown key '{full_key}'{_nearest(str(key), cls, prefix)}")
        values[key] = _convert(hints[key], value, where, full_key)
    return cls(**values)


def _convert(hint: Any, value: Any, where: str, key: str) -> Any:
    options = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        hint = next(option for option in options if option is not type(None))
        return _convert(hint, value, where, key)
    if origin is tuple:
        items = value if isinstance(value, list) else [value]
        return tuple(_convert(options[0], item, where, key) for item in items)
    if origin is Literal:
        if value not in options:
            choices = ", ".join(map(str, options))
            raise UserError(f"{where}: {key}={value!r} is none of: {choices}")
        return value
    if dataclasses.is_dataclass(hint):
        return from_tree(typing.cast(type, hint), {} if value is None else value, where, key)
    return _convert_scalar(hint, value, where, key)


def _convert_scalar(hint: Any, value: Any, where: str, key: str) -> Any:
    if hint is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)  # YAML 1.1 reads 1e-3, without a dot, as text
        except ValueError:
            pass
    elif hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    elif hint is str and value is None:
        return ""
    elif hint is str and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    elif type(value) is hint:
        return value
    expected = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[hint]
    # YAML reads the language code `no` as false.
    hint_quotes = " (put it into quotes)" if hint is str else ""
    raise UserError(f"{where}: {key}={value!r} should be {expected}{hint_quotes}")


def _nearest(key: str, cls: type, prefix: str) -> str:
    """Name the known key most like a mistyped one, in its own section or in any other."""
    own = [f.name for f in dataclasses.fields(cls)]
    near = difflib.get_close_matches(key, own, n=1)
    if near:
        return f"; did you mean '{prefix + '.' if prefix else ''}{near[0]}'?"
    for section in dataclasses.fields(Config):
        hint = typing.get_type_hints(Config)[section.name]
        if dataclasses.is_dataclass(hint) and key in {f.name for f in dataclasses.fields(hint)}:
            return f"; did you mean '{section.name}.{key}'?"
    return f"; known here: {', '.join(own)}"


def _apply_override(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(f"'{override}' is not an override: write section.key=value")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise UserError(f"the value of '{override}' is not YAML: quote it") from None
    *sections, last = key.split(".")
    for section in sections:
        below = tree.setdefault(section, {})
        if isinstance(below, str):  # a corpus given by its path alone
            below = {"path": below}
        if below is None:
            below = {}
        if not isinstance(below, dict):
            raise UserError(f"'{override}': '{section}' has no keys below it")
        tree[section] = below
        tree = below
    tree[last] = value


def _validate(config: Config) -> None:
    model, training, tokenizer = config.model, config.training, config.tokenizer
    decoding, data = config.decoding, config.data

    def require(fact: bool, message: str) -> None:
        if not fact:
            raise UserError(message)

    require(
        model.num_heads > 0 and model.dim % model.num_heads == 0,
        f"model.dim={model.dim} is not divisible by model.num_heads={model.num_heads}",
    )
    require(model.dim % 2 == 0, f"model.dim={model.dim} must be even: sines and cosines share it")
    for key, size in [
        ("model.dim", model.dim),
        ("model.ffn_dim", model.ffn_dim),
        ("model.encoder_layers", model.encoder_layers),
        ("model.decoder_layers", model.decoder_layers),
        ("training.max_steps", training.max_steps),
        ("training.batch_tokens", training.batch_tokens),
        ("training.micro_batch_tokens", training.micro_batch_tokens),
        ("training.warmup_steps", training.warmup_steps),
        ("training.log_every", training.log_every),
        ("training.keep_last", training.keep_last),
        ("decoding.beam", decoding.beam),
        ("decoding.validation_beam", decoding.validation_beam),
        ("decoding.batch_tokens", decoding.batch_tokens),
        ("tokenizer.vocab_size", tokenizer.vocab_size),
        ("tokenizer.sample", tokenizer.sample),
    ]:
        require(size >= 1, f"{key}={size} must be at least 1")
    for key, every in [
        ("training.validate_every", training.validate_every),
        ("training.validate_every_epochs", training.validate_every_epochs),
        ("training.checkpoint_every", training.checkpoint_every),
        ("training.checkpoint_every_minutes", training.checkpoint_every_minutes),
        ("training.checkpoint_every_epochs", training.checkpoint_every_epochs),
        ("training.patience", training.patience),
        ("training.max_minutes", training.max_minutes),
        ("data.clean.max_len", data.clean.max_len),
        ("data.clean.max_ratio", data.clean.max_ratio),
        ("training.clip_norm", training.clip_norm),
        ("training.validation_sentences", training.validation_sentences),
        ("training.lr", training.lr),
        ("training.adam_eps", training.adam_eps),
    ]:
        require(every is None or every > 0, f"{key}={every} must be above 0, or null for never")
    for key, number in [
        ("training.seed", training.seed),
        ("training.average_last", training.average_last),
        ("data.dev_size", data.dev_size),
        ("data.test_size", data.test_size),
        ("decoding.length_penalty", decoding.length_penalty),
        ("decoding.max_extra", decoding.max_extra),
    ]:
        require(number >= 0, f"{key}={number} must not be negative")
    for key, share in [
        ("model.dropout", model.dropout),
        ("training.label_smoothing", training.label_smoothing),
        ("tokenizer.bpe_dropout", tokenizer.bpe_dropout),
        ("training.adam_beta1", training.adam_beta1),
        ("training.adam_beta2", training.adam_beta2),
    ]:
        require(0 <= share < 1, f"{key}={share} must be at least 0 and below 1")
    require(
        training.average_last <= training.keep_last,
        f"training.average_last={training.average_last} needs training.keep_last of as many, "
        f"not {training.keep_last}",
    )
    require(
        tokenizer.kind == "bpe" or not tokenizer.bpe_dropout,
        "tokenizer.bpe_dropout is for tokenizer.kind=bpe: characters have no merges to leave out",
    )
    require(
        len(tokenizer.models) in ((0, 1) if tokenizer.shared else (0, 2)),
        f"tokenizer.models names {len(tokenizer.models)} models: one is needed with "
        "tokenizer.shared=true, two (source, target) with tokenizer.shared=false",
    )
    for key, language in [("data.source", data.source), ("data.target", data.target)]:
        require(bool(language.strip()), f"{key} is empty: name the language, as {key}=en")
    require(bool(data.train), "data.train is empty: name a corpus, as data.train=my/corpus")
    require(
        not (data.dev and data.dev_size) and not (data.test and data.test_size),
        "data.dev and data.dev_size (or data.test and data.test_size) exclude each other",
    )
    require(
        bool(data.dev or data.dev_size),
        "no development set: name it with data.dev=PREFIX, or hold one out with data.dev_size=1000",
    )
    for corpus in data.train:
        require(corpus.weight > 0, f"data.train: weight={corpus.weight} must be above 0")
    for named in (*data.train, data.dev, data.test):
        tag = named.tag if named else None
        require(
            tag is None or (bool(tag) and not any(c.isspace() for c in tag)),
            f"data: tag={tag!r} must be one symbol without spaces, as <news>",
        )
