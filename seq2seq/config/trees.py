"""Convert dataclasses to plain dictionaries and back, with precise error messages."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import types
import typing
from typing import Annotated, Any, Literal, TypeVar

from seq2seq.config.data import CorpusConfig
from seq2seq.config.schema import TASKS
from seq2seq.errors import UserError, short

T = TypeVar("T")

EXPECTED = {
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
    str: "text (put it into quotes)",  # YAML reads the language code `no` as false
}
"""Descriptions of types, for messages about wrong values."""


def to_tree(config: Any) -> dict[str, Any]:
    """Return a dataclass as plain dictionaries and lists."""
    tree: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))  # without tuples
    return tree


def from_tree(default: T, tree: Any, where: str, prefix: str = "") -> T:
    """Return a dataclass with values from nested dictionaries. where: the file, for errors."""
    cls = type(default)
    if cls is CorpusConfig and isinstance(tree, str):
        tree = {"path": tree}
    if not isinstance(tree, dict):
        raise UserError(f"{where}: '{prefix}' must have `key: value` lines, not {short(tree)}")
    hints = typing.get_type_hints(cls, include_extras=True)
    values = {}
    for key, value in tree.items():
        full_key = f"{prefix}.{key}" if prefix else str(key)
        if key not in hints:
            raise UserError(f"{where}: unknown key '{full_key:.80}'{_nearest(full_key, cls)}")
        values[key] = _convert(hints[key], getattr(default, key), value, where, full_key)
    return dataclasses.replace(default, **values)  # type: ignore[type-var]


def _convert(hint: Any, default: Any, value: Any, where: str, key: str) -> Any:
    """Convert a value to a type. Raises UserError if that is impossible."""
    options = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):  # X | None
        return None if value is None else _convert(options[0], default, value, where, key)
    if origin is Annotated:
        number = _convert(options[0], default, value, where, key)
        minimum, maximum = options[1]
        if not minimum <= number <= maximum:
            bound = f"at least {minimum:,}" if number < minimum else f"at most {maximum:,}"
            raise UserError(f"{where}: {key}={short(number)} must be {bound}")
        return number
    if origin is tuple:
        items = value if isinstance(value, list) else [] if value is None else [value]
        return tuple(_convert(options[0], None, item, where, key) for item in items)
    if origin is Literal:
        if value not in options:
            choices = ", ".join(map(str, options))
            raise UserError(f"{where}: {key}={short(value)} must be one of: {choices}")
        return value
    if dataclasses.is_dataclass(hint):
        default = typing.cast(type, hint)() if default is None else default
        return from_tree(default, {} if value is None else value, where, key)
    try:
        return _scalar(hint, value)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{where}: {key}={short(value)} should be {EXPECTED[hint]}") from None


def _scalar(kind: type, value: Any) -> Any:
    """Convert a YAML value to a type. Raises an error if that is impossible."""
    if kind is str and value is None:
        return ""
    if not isinstance(value, int | float | str) or isinstance(value, bool) != (kind is bool):
        raise TypeError
    if kind is int and (isinstance(value, str) or int(value) != value):
        raise ValueError
    converted = kind(value)  # YAML 1.1 reads 1e-3, without a dot, as text
    if kind is float and not math.isfinite(converted):
        raise ValueError
    return converted


def _nearest(key: str, cls: type) -> str:
    """Return a suggestion for an unknown key, from another section or task or from its section."""
    section, dot, name = key.rpartition(".")
    for task, recipe in TASKS.items():
        for known in leaves(to_tree(recipe.defaults)):
            if known.rpartition(".")[2] == name:
                return f"; did you mean '{known}', with task={task}?"
    near = difflib.get_close_matches(name, typing.get_type_hints(cls), n=1)
    return f"; did you mean '{section}{dot}{near[0]}'?" if near else "; see docs/recipe.md"


def leaves(tree: Any, key: str = "") -> dict[str, Any]:
    """Flatten nested dictionaries and lists to dotted keys, such as `data.train.0.path`."""
    if isinstance(tree, dict):
        items = [(str(name), value) for name, value in tree.items()]
    elif isinstance(tree, list) and any(isinstance(value, dict) for value in tree):
        items = [(str(i), value) for i, value in enumerate(tree)]
    else:
        return {key: tree}
    flat: dict[str, Any] = {}
    for name, value in items:
        flat |= leaves(value, f"{key}.{name}" if key else name)
    return flat
