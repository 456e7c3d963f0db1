"""Recipes: read from YAML, with `section.key=value` overrides, and written back in full."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from seq2seq.config.checks import check_values
from seq2seq.config.schema import AUTO, Config
from seq2seq.config.trees import from_tree, to_tree
from seq2seq.errors import UserError, shown
from seq2seq.task import Task, load_task, task_names

_NUMBER_SIGN = re.compile(r"(^|\s)#")


def read_recipe(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read a recipe and apply `section.key=value` overrides; return its keys, of valid types."""
    path = Path(path)
    try:
        tree = _load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"recipe not found: {path}; `seq2seq new` writes one") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder; name the recipe in it: {path}/recipe.yaml") from None
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} is not a readable YAML recipe: {reason}") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path} is not a recipe: it holds no `key: value` at its top")
    for override in overrides:
        _apply_override(tree, override)
    where = f"{path} with {' '.join(overrides)}" if overrides else str(path)
    config_of(tree, where)  # raises for wrong types
    if not tree.get("name"):
        tree["name"] = path.resolve().parent.name if path.stem == "recipe" else path.stem
    return tree


def resolve(tree: dict[str, Any], where: str) -> Config:
    """Fill in the defaults of the task and check all values; `where` names the file in errors."""
    config = config_of(tree, where)
    check_values(config)
    return config


def config_of(tree: dict[str, Any], where: str) -> Config:
    """Return a recipe with the defaults of its task; raises UserError for unknown keys and types.

    Keys that have no effect for the task may be there with their default.
    """
    task = load_task(tree.get("task", "translation"))
    tree = deepcopy(tree)
    own, defaults = to_tree(task.defaults), to_tree(Config())
    for key in task.unused:
        default = _pop(defaults, key)
        for name, value in default.items() if isinstance(default, dict) else [("", default)]:
            full_key = f"{key}.{name}" if name else key
            _drop(tree, full_key, [value, _pop(own, full_key)], task)
    for name in task_names() if _has_unknown_data(tree, own) else ():
        theirs = to_tree(load_task(name).defaults.data)
        for key in sorted(theirs.keys() - own["data"].keys()):
            _drop(tree, f"data.{key}", [theirs[key]], task, f" is for task={name}, and")
    return from_tree(task.defaults, tree, where)


def _has_unknown_data(tree: dict[str, Any], own: dict[str, Any]) -> bool:
    return isinstance(data := tree.get("data"), dict) and bool(data.keys() - own["data"].keys())


def _drop(
    tree: dict[str, Any], key: str, defaults: Sequence[Any], task: Task, why: str = ""
) -> None:
    """Remove a key that has no effect; raises UserError if it has none of its defaults."""
    value = _pop(tree, key)
    if value is not _MISSING and value not in defaults:
        name = task.defaults.task
        raise UserError(f"{key}={shown(value)}{why} has no effect for task={name}: leave it out")


_MISSING = object()


def _pop(tree: dict[str, Any], key: str) -> Any:
    """Remove a key of a section from a tree; return its value, _MISSING without one."""
    *sections, last = key.split(".")
    for section in sections:
        below = tree.get(section)
        if not isinstance(below, dict):
            return _MISSING
        tree = below
    return tree.pop(last, _MISSING)


def default_run(name: str) -> Path:
    """Return the default run directory of a recipe."""
    return Path("runs") / name


def with_batch_tokens(config: Config, batch_tokens: int | None) -> Config:
    """Return the recipe with this many tokens per batch; unchanged for None."""
    if batch_tokens is None:
        return config
    return replace(
        config,
        training=replace(config.training, micro_batch_tokens=batch_tokens),
        decoding=replace(config.decoding, batch_tokens=batch_tokens),
    )


def to_yaml(config: Config) -> str:
    """Return the whole recipe as YAML, defaults included."""
    tree = to_tree(config)
    for key in ("batch_tokens", "micro_batch_tokens"):
        if tree["training"][key] == AUTO:
            tree["training"][key] = "auto"
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)


class _Loader(yaml.SafeLoader):
    """Reads YAML; a key that occurs twice is an error, and not the last one's value."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Compose a mapping."""
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            line = key.start_mark.line + 1
            if key.value in lines:
                raise yaml.YAMLError(
                    f"line {line}: the key {shown(key.value)} is in line {lines[key.value]} "
                    "already; keep one of them"
                )
            lines[key.value] = line
        return node


def _load(text: str) -> Any:
    return yaml.load(text, Loader=_Loader)


def _apply_override(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(f"'{override}' is not an override: write section.key=value")
    try:
        # Here a number sign does not start a comment: it is part of a path.
        plain = _NUMBER_SIGN.search(text) and not text.startswith(("'", '"', "[", "{"))
        value = text if plain else _load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
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
        tree[section] = tree = dict(below)  # an alias of another section in YAML remains as it is
    tree[last] = value
