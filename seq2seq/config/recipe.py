"""Recipes: read from YAML, with `section.key=value` overrides, and written back in full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import yaml

from seq2seq.config.checks import check_values, require_unset
from seq2seq.config.schema import Config
from seq2seq.config.tasks import TASKS
from seq2seq.config.trees import from_tree, to_tree
from seq2seq.errors import UserError, short


def read_recipe(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return the keys of a recipe with `section.key=value` overrides. Checks types, not values."""
    path = Path(path)
    try:
        with path.open(encoding="utf-8") as stream:
            tree = _load(stream)
    except FileNotFoundError:
        raise UserError(f"recipe not found: {path}; create one with `seq2seq new`") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder; name the recipe in it: {path}/recipe.yaml") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} is not a readable YAML recipe: {reason}") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path} is not a recipe: expected `key: value` lines")
    for override in overrides:
        _apply_override(tree, override)
    where = f"{path} with {' '.join(overrides)}" if overrides else str(path)
    config_of(tree, where)  # raises for wrong types
    if not tree.get("name"):
        tree["name"] = path.resolve().parent.name if path.stem == "recipe" else path.stem
    return tree


def resolve(tree: dict[str, Any], where: str) -> Config:
    """Return the complete recipe and check its values. where: name of the file, for errors."""
    config = config_of(tree, where)
    check_values(config)
    return config


def config_of(tree: dict[str, Any], where: str) -> Config:
    """Return a recipe with its task's defaults. Raises UserError for unknown keys or types."""
    name = tree.get("task", "translation")
    if name not in list(TASKS):
        raise UserError(f"{where}: task={short(name)} must be one of: {', '.join(TASKS)}")
    task = TASKS[name]
    config = from_tree(task.defaults, tree, where)
    require_unset(config, f"for task={name}", task.unused)
    return config


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


def _load(text: str | IO[str]) -> Any:
    return yaml.load(text, Loader=_Loader)


def _apply_override(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(f"'{override}' is not a valid override: write section.key=value")
    try:
        # A number sign does not start a comment here: it is part of a path.
        plain = "#" in text and not text.startswith(("'", '"', "[", "{"))
        value = text if plain else _load(text)
    except (yaml.YAMLError, ValueError):
        raise UserError(f"the value of '{override}' is not valid YAML: quote it") from None
    *sections, last = key.split(".")
    for section in sections:
        subtree = tree.setdefault(section, {})
        if isinstance(subtree, str):  # a corpus given by its path
            subtree = {"path": subtree}
        if subtree is None:
            subtree = {}
        if not isinstance(subtree, dict):
            raise UserError(f"'{override}': '{section}' is not a section")
        tree[section] = tree = dict(subtree)  # a copy: YAML aliases of the section stay unchanged
    tree[last] = value
