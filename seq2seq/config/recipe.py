"""Recipes: read from YAML, with `section.key=value` overrides, and written back in full."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import is_dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import yaml

from seq2seq.config.checks import check_values
from seq2seq.config.schema import Config
from seq2seq.config.trees import from_tree, to_tree
from seq2seq.errors import UserError, shown
from seq2seq.task import load_task, task_names

_NUMBER_SIGN = re.compile(r"(^|\s)#")
REMOVED = {
    "decoding": {
        "coverage_penalty",
        "diverse_groups",
        "diversity",
        "lookahead",
        "retry_repetitions",
    }
}
"""Keys of earlier versions, by section: they are read and have no effect."""


def read_recipe(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read a recipe and apply `section.key=value` overrides; return its keys, of valid types."""
    path = Path(path)
    try:
        tree = _load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"recipe not found: {path}; `seq2seq new` writes one") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder; name the recipe in it: {path}/recipe.yaml") from None
    except yaml.MarkedYAMLError as error:
        mark, start = error.problem_mark, error.context_mark
        assert mark
        begins = f" {error.context} that begins in line {start.line + 1}" if start else ""
        raise UserError(
            f"{path} is not a readable YAML recipe: line {mark.line + 1}, column "
            f"{mark.column + 1}: {error.problem}{begins}; check indentation, colons and brackets"
        ) from None
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

    Keys that have no effect for the task may be there with their default, as in recipes from when
    all tasks had the same section `data`.
    """
    try:
        task = load_task(tree.get("task", "translation"))
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    tree = _without_removed(tree)
    name = task.defaults.task
    data = tree.get("data")
    if isinstance(data, dict) and data.keys() - vars(task.defaults.data).keys():
        tree = tree | {"data": _own_data(data, name, where)}
    config = from_tree(task.defaults, tree, where)
    for key in task.unused:
        own = attrgetter(key)(task.defaults)
        allowed = [own, attrgetter(key)(Config())]
        if changed := _first_change(attrgetter(key)(config), allowed, key):
            leaf, value = changed
            raise UserError(f"{leaf}={shown(value)} has no effect for task={name}: leave it out")
        config = _with(config, key, own)
    return config


def _without_removed(tree: dict[str, Any]) -> dict[str, Any]:
    sections = {
        name: {key: value for key, value in tree[name].items() if key not in removed}
        for name, removed in REMOVED.items()
        if isinstance(tree.get(name), dict)
    }
    return tree | sections


def _own_data(data: dict[str, Any], task: str, where: str) -> dict[str, Any]:
    """Return a section `data` without the keys of other tasks, if these have their defaults."""
    sections = {name: load_task(name).defaults.data for name in task_names()}
    own = dict(data)
    for key in [each for each in data if each not in vars(sections[task])]:
        owners = [name for name, section in sections.items() if key in vars(section)]
        if not owners:
            continue  # it is unknown
        given = from_tree(sections[owners[0]], {key: own.pop(key)}, where, "data")
        defaults = [vars(sections[name])[key] for name in owners]
        if changed := _first_change(vars(given)[key], defaults, f"data.{key}"):
            leaf, value = changed
            value = data[key] if leaf == f"data.{key}" else value
            raise UserError(
                f"{where}: {leaf}={shown(value)} is for task={' and task='.join(owners)}, and has "
                f"no effect for task={task}: leave it out"
            )
    return own


def _first_change(value: Any, defaults: Sequence[Any], key: str) -> tuple[str, Any] | None:
    """Return the first key in a value that has none of its defaults, and what it has."""
    if is_dataclass(value) and all(map(is_dataclass, defaults)):
        below = (
            _first_change(each, [vars(default)[name] for default in defaults], f"{key}.{name}")
            for name, each in vars(value).items()
        )
        return next(filter(None, below), None)
    return None if value in defaults else (key, value)


def _with(config: Any, key: str, value: Any) -> Any:
    """Return a dataclass with another value for a key, `section.key` or below."""
    name, _, rest = key.partition(".")
    return replace(config, **{name: _with(getattr(config, name), rest, value) if rest else value})


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
    return yaml.safe_dump(to_tree(config), sort_keys=False, allow_unicode=True)


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
