"""Recipes: read from YAML, overridden by `section.key=value`, written back whole."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from seq2seq.config.checks import check_values
from seq2seq.config.schema import Config, CorpusConfig
from seq2seq.errors import UserError

T = TypeVar("T")


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
    check_values(config)
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
