"""Every key of the schema is set to a non-default value by some test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import yaml

from seq2seq.config import TASKS, Config

_OVERRIDE = re.compile(r"([a-z_]+(?:\.[a-z_]+)*)=(.*)$", re.DOTALL)


def defaults(config: Any, prefix: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield the class, the full name and the default of each key."""
    for name, value in vars(config).items():
        if is_dataclass(value):
            yield from defaults(value, f"{prefix}{name}.")
        else:
            yield type(config).__name__, prefix + name, value


def settings(tree: object, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each key of a recipe, or of a part of one, and its value."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield f"{prefix}{key}", value
            yield from settings(value, f"{prefix}{key}.")


def set_by_text(text: str) -> Iterator[tuple[str, Any]]:
    """Yield the keys that a string sets: an override or a recipe."""
    override = _OVERRIDE.match(text)
    try:
        if override:
            yield from settings({override[1]: yaml.safe_load(override[2])})
        elif ":" in text:
            yield from settings(yaml.safe_load(text.replace("{{", "{").replace("}}", "}")))
    except yaml.YAMLError:
        return


def set_by(node: ast.AST, names: dict[tuple[str, str], str]) -> Iterator[tuple[str, Any]]:
    """Yield the keys that an expression in a test sets; names: the keys of each class."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from set_by_text(node.value)
    elif isinstance(node, ast.JoinedStr):
        parts = (str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
        yield from set_by_text("".join(parts))
    elif isinstance(node, ast.Dict):  # of options of a search
        for name, value in zip(node.keys, node.values, strict=True):
            key = names.get(("DecodingConfig", str(getattr(name, "value", ""))))
            if key is not None and isinstance(value, ast.Constant):
                yield key, value.value
    elif isinstance(node, ast.Call):
        called = getattr(node.func, "id", "")
        for keyword in node.keywords:
            if (key := names.get((called, keyword.arg or ""))) is not None:
                constant = isinstance(keyword.value, ast.Constant)
                yield key, keyword.value.value if constant else keyword.value  # type: ignore[attr-defined]


def test_every_key_has_a_test() -> None:
    keys = list(defaults(Config()))
    for task in TASKS.values():
        keys += defaults(task.defaults.data, "data.")
    default_of = {key: default for _, key, default in keys}
    names = {(cls, key.rpartition(".")[2]): key for cls, key, _ in keys}
    tried: set[str] = set()
    for path in Path(__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            tried |= {
                key
                for key, value in set_by(node, names)
                if key in default_of and value != default_of[key]
            }
    assert len(default_of) > 80 and sorted(default_of.keys() - tried) == []
