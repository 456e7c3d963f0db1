"""The page of every key of a recipe, from the schema."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from docs_pages.docstrings import attribute_docs, class_source, escaped

from seq2seq.config.checks import UNUSED_KEYS
from seq2seq.config.recipe import TASK_DEFAULTS
from seq2seq.config.schema import Bounds, Config

_INTRODUCTION = """\
# Recipe

A recipe is one YAML file. A key `section.key` is written so on the command line
(`training.lr=0.5`); in the file it is `key:` below `section:`. An unknown key is an error.
`seq2seq train RECIPE --print-config` prints every key with its value.
"""
_SCALARS = {int: "Whole number", float: "Number", str: "Text", bool: "`true`, `false`"}


def page() -> str:
    """Return the page."""
    return "\n".join([_INTRODUCTION, *_section(Config, [])])


def _section(cls: type, places: list[str]) -> Iterator[str]:
    """Yield the lines about a dataclass, which is at these keys, and about those below it."""
    title = ", ".join(f"`{place}`" for place in places) or "Top level"
    anchor = f" {{ #{_name(cls)} }}" if len(places) > 1 else ""  # where others link to
    yield f"\n## {title}{anchor}\n\n{escaped(cls.__doc__ or '')}\n"
    docs = attribute_docs(class_source(cls))
    hints, default = get_type_hints(cls, include_extras=True), cls()
    prefix = f"{places[0]}." if len(places) == 1 else ""
    below: dict[type, list[str]] = {}
    for each in fields(cls):
        key, inner = f"{prefix}{each.name}", _dataclass_in(hints[each.name])
        if inner:
            below.setdefault(inner, []).append(key)
        if inner and is_dataclass(getattr(default, each.name)):
            continue  # described as a section
        yield f"### `{key}`\n"
        facts = [_values(hints[each.name]), f"Default: {_defaults(key, default, each.name)}"]
        yield ". ".join([*facts, *_unused(key)]) + ".\n"
        yield f"{escaped(docs.get(each.name, ''))}\n"
    for inner, inner_places in below.items():
        yield from _section(inner, inner_places)


def _name(cls: type) -> str:
    return cls.__name__.removesuffix("Config").lower()


def _defaults(key: str, default: Any, name: str) -> str:
    texts = [f"`{_shown(getattr(default, name))}`"]
    for task, values in TASK_DEFAULTS.items():
        if key in values:
            texts.append(f"with `task: {task}` `{_shown(values[key])}`")
    return ", ".join(texts)


def _shown(value: Any) -> str:
    """Return a default as it would be in a recipe."""
    return value if isinstance(value, str) and value else json.dumps(value)


def _unused(key: str) -> list[str]:
    """Return what to say of the tasks that refuse a key."""
    tasks = [
        f"`{task}`"
        for task, unused in UNUSED_KEYS.items()
        if any(f"{key}.".startswith(f"{each}.") for each in unused)
    ]
    return [f"Not for `task`: {', '.join(tasks)}"] if tasks else []


def _values(hint: Any) -> str:
    """Say which values a key may have."""
    origin, options = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return f"{_values(options[0])}, or `null`"  # no key has another kind of union
    if origin is Annotated:
        bounds = [each.text for each in options[1:] if isinstance(each, Bounds)]
        return ", ".join([_values(options[0]), *bounds])
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in options)
    if origin is tuple:
        return f"{_values(options[0])}, or a list of these"
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return f"A [{_name(hint)}](#{_name(hint)})"
    return _SCALARS[hint]


def _dataclass_in(hint: Any) -> type | None:
    """Return the dataclass that a hint is, or is a list or an option of."""
    candidates = (hint, *get_args(hint))
    return next(
        (each for each in candidates if isinstance(each, type) and is_dataclass(each)), None
    )
