"""Recipes: read from YAML, with `section.key=value` overrides, and written back in full."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from seq2seq.config.checks import check_values
from seq2seq.config.data import CorpusConfig
from seq2seq.config.schema import TASKS, Config
from seq2seq.config.trees import from_tree, to_tree
from seq2seq.errors import UserError, short

REMOVED = ("upper", "title", "no_end")
"""Former keys of `data.augment`. In the recipe of an older model they may be 0."""


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
    data = tree.get("data")
    if isinstance(data, dict) and isinstance(changes := data.get("augment"), dict):
        kept = {key: rate for key, rate in changes.items() if key not in REMOVED or rate}
        tree = tree | {"data": data | {"augment": kept}}
    return from_tree(TASKS[name].defaults, tree, where)


def default_run(name: str) -> Path:
    """Return the default run directory of a recipe."""
    return Path("runs") / name


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
        keys, dataset = ["path", "source", "target"], value.dataset
        if dataset and (Path(dataset).is_absolute() or Path(dataset).is_dir()):
            keys.append("dataset")
        changes: dict[str, Any] = {
            key: convert(path) for key in keys if (path := getattr(value, key))
        }
        return replace(value, **changes)

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


class _Loader(yaml.SafeLoader):
    """YAML loader that rejects duplicate keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping."""
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
