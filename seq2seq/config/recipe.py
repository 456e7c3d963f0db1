"""Recipes: read from YAML with overrides, checked beyond types and bounds, and written."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from seq2seq.config.data import CorpusConfig, PairsConfig, TextConfig
from seq2seq.config.schema import TASKS, Config
from seq2seq.config.trees import from_tree, leaves, to_tree
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
    require(
        not (training.freeze_embeddings and tokenizer.new_pieces),
        "training.freeze_embeddings=true would not train the pieces of tokenizer.new_pieces",
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
    for split in ("dev", "test"):
        if getattr(config.data, split, None):
            yield f"with data.{split}", [f"data.{split}_size"]
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
    require(
        bool(data.dev or data.dev_size),
        "no development set: set data.dev=PREFIX, or hold out pairs with data.dev_size=1000",
    )
    require(
        config.tokenizer.kind != "byte",
        "tokenizer.kind=byte is for language models: use bpe or char, which also cover all bytes",
    )
    filtered = (data.clean.min_score, data.clean.best_share) != (None, None)
    scored = any(corpus.scores for corpus in data.train)
    require(
        filtered or not scored,
        "data.train has scores: set data.clean.min_score or data.clean.best_share",
    )
    require(
        scored or not filtered,
        "data.clean.min_score and best_share need the `scores` of a corpus in data.train",
    )
    if not config.translates:
        wrong = [corpus for corpus in data.corpora if corpus.languages or corpus.reverse]
        require(not wrong, f"languages and reverse of a corpus have no effect for {config.task}")
        return
    _check_languages(data)
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


def _check_languages(data: PairsConfig) -> None:
    for corpus in data.corpora:
        name = corpus.path or corpus.source or corpus.dataset or "a corpus"
        require(
            len(corpus.languages) in (0, 2),
            f"the languages of {name} must be source and target, such as [en, fr], not "
            f"{list(corpus.languages)}",
        )
        for side, language in zip(("source", "target"), data.directions_of(corpus)[0], strict=True):
            require(
                bool(language.strip()),
                f"data.{side} is empty: give the language, such as data.{side}=en, or give {name} "
                "`languages: [en, fr]`",
            )
            require(
                not any(c.isspace() or c == "\u2581" for c in language),
                f"the language {language!r} of {name} must be a code without spaces, such as en",
            )
    for split, corpora in (("dev", data.dev), ("test", data.test)):
        found = [direction for corpus in corpora for direction in data.directions_of(corpus)]
        for direction in found:
            require(
                found.count(direction) == 1,
                f"data.{split} has several sets for {direction}: give one for each direction",
            )
            for language, known in zip(direction, (data.languages, data.targets), strict=True):
                require(
                    language in known,
                    f"data.{split} has the direction {direction}, but the training corpora have "
                    f"no {language!r} there, only {', '.join(known)}",
                )


def _check_text(data: TextConfig) -> None:
    require(data.text is not None, "data.text is empty: give a text, such as data.text=my.txt")
    dev, test = data.dev_share, data.test_share
    require(
        0 < dev < 1 - test,
        f"data.dev_share={dev} and data.test_share={test} must sum to less than 1, and "
        "data.dev_share must be above 0",
    )


def read_recipe(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return the keys of a recipe with `section.key=value` overrides.

    Checks each key and its value; combinations of values are checked by `resolve`.
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8") as stream:
            tree = yaml.load(stream, Loader=_Loader)
    except FileNotFoundError:
        raise UserError(f"recipe not found: {path}; create one with `seq2seq new`") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} is not a readable YAML recipe: {reason}") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path} is not a recipe: expected `key: value` lines")
    for override in overrides:
        _apply_override(tree, override)
    where = f"{path} with {' '.join(overrides)}" if overrides else str(path)
    config_of(tree, where)  # for its errors
    if not tree.get("name"):
        tree["name"] = path.resolve().parent.name if path.stem == "recipe" else path.stem
    return tree


def resolve(tree: dict[str, Any], where: str) -> Config:
    """Return the complete recipe and check all values. where: name of the file, for errors."""
    config = config_of(tree, where)
    check_values(config)
    return config


def config_of(tree: dict[str, Any], where: str) -> Config:
    """Return a recipe with its task's defaults. Raises UserError for a wrong key or value."""
    name = tree.get("task", "translation")
    if name not in list(TASKS):
        raise UserError(f"{where}: task={short(name)} must be one of: {', '.join(TASKS)}")
    return from_tree(TASKS[name].defaults, tree, where)


def with_batch_tokens(config: Config, batch_tokens: int | None) -> Config:
    """Return the recipe with this many tokens per (micro-)batch, or unchanged if None."""
    if batch_tokens is None:
        return config
    return replace(
        config,
        training=replace(config.training, micro_batch_tokens=batch_tokens),
        decoding=replace(config.decoding, batch_tokens=batch_tokens),
    )


def with_paths(config: Config, convert: Callable[[str], str] = os.path.abspath) -> Config:
    """Return a recipe with `convert(path)` for each path, by default the absolute path.

    Converts the paths of corpora, data.store, tokenizer.models and training.init_from. A dataset
    counts as a path if it is a local folder.
    """

    def converted(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(converted, value))
        if not isinstance(value, CorpusConfig):
            return value
        keys, dataset = ["path", "source", "target", "scores"], value.dataset
        if dataset and (Path(dataset).is_absolute() or Path(dataset).is_dir()):
            keys.append("dataset")
        paths: Any = {key: convert(path) for key in keys if (path := getattr(value, key))}
        return replace(value, **paths)

    data = {key: converted(value) for key, value in vars(config.data).items()}
    data["store"] = convert(config.data.store)
    models, initial = config.tokenizer.models, config.training.init_from
    return replace(
        config,
        data=replace(config.data, **data),
        tokenizer=replace(config.tokenizer, models=tuple(map(convert, models))),
        training=replace(config.training, init_from=convert(initial) if initial else initial),
    )


def to_yaml(config: Config) -> str:
    """Return the recipe as YAML, including defaults."""
    return yaml.safe_dump(to_tree(config), sort_keys=False, allow_unicode=True)


def commented_yaml(
    tree: Mapping[str, Any], comments: Mapping[str, str], default: Any = None, prefix: str = ""
) -> str:
    """Return a recipe as YAML with a comment on each key.

    comments: by key, such as `model.dim`. Other keys have the first sentence of their docstring.
    default, prefix: dataclass and prefix of a section.
    """
    default = default or TASKS[tree.get("task", "translation")].defaults
    docs, text = attribute_docs(type(default)), ""
    for name, value in tree.items():
        key, inner = f"{prefix}{name}", getattr(default, name)
        is_section = is_dataclass(inner)
        described = " ".join((inner.__doc__ or "" if is_section else docs[name]).split())
        comment = comments.get(key) or re.split(r"(?<!\bal)\.(?: |$)", described)[0]
        indent = "  " * prefix.count(".")
        corpora = value if isinstance(value, list) and dict in map(type, value) else []
        line = f"{indent}{name}:{'' if is_section or corpora else f' {_flow(value)}'}"
        text += f"{line:44}  # {comment}\n"
        text += "".join(f"{indent}  - {_flow(corpus)}\n" for corpus in corpora)
        if is_section:
            text += commented_yaml(value, comments, inner, f"{key}.")
    return text


def _flow(value: Any) -> str:
    """Return a value as YAML on one line. A list with one item becomes the item."""
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def attribute_docs(cls: type) -> dict[str, str]:
    """Return the docstrings of the attributes of a class, from its source, with inherited ones."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__ != "builtins":
            module = inspect.getsource(sys.modules[base.__module__])
            [source] = re.findall(rf"^class {base.__name__}\b.*?(?=^\S|\Z)", module, re.M | re.S)
            found = re.findall(r'^    (\w+): [^\n]*\n    """(.+?)"""', source, re.M | re.S)
            docs |= {name: inspect.cleandoc(text) for name, text in found}
    return docs


class _Loader(yaml.SafeLoader):
    """YAML loader that rejects duplicate keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = set()
        for key, _ in node.value:
            if key.value in keys:
                line = key.start_mark.line + 1
                raise yaml.YAMLError(f"line {line}: duplicate key {key.value}")
            keys.add(key.value)
        return super().construct_mapping(node, deep)


def _apply_override(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(f"'{override}' is not a valid override: write section.key=value")
    try:
        value = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError):
        raise UserError(f"the value of '{override}' is not valid YAML: quote it") from None
    *sections, last = key.split(".")
    for section in sections:
        subtree = tree.get(section) or {}
        if isinstance(subtree, str):  # a corpus given by its path
            subtree = {"path": subtree}
        if not isinstance(subtree, dict):
            raise UserError(f"'{override}': '{section}' is not a section")
        tree[section] = tree = dict(subtree)  # a copy: YAML aliases of the section stay unchanged
    tree[last] = value
