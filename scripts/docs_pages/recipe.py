"""Page of the recipe keys, generated from the schema."""

from __future__ import annotations

import json
import types
from collections.abc import Collection, Iterator
from dataclasses import is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from docs_pages.docstrings import escaped

from seq2seq.config import TASKS, Config, attribute_docs

_INTRODUCTION = """\
# Recipe

A recipe is a YAML file. On the command line a key is `section.key=value`, such as
`training.lr=0.5`; in the file it is `key:` below `section:`. Defaults are in parentheses. An
unknown key is an error. `seq2seq train RECIPE --print-config` prints every key with its value.
"""
_SCALARS = {int: "Integer", float: "Number", str: "Text", bool: "Boolean"}
_MOST = {2**31 - 1, 2**32 - 1, 1e6, 1e30}
"""Technical upper bounds that the page leaves out."""
_BELOW_ONE = 1 - 1e-9


def page() -> str:
    """Return the page in Markdown."""
    lines = [_INTRODUCTION, *_section(Config(), [])]
    common = Config().data
    for task in TASKS:
        data = TASKS[task].defaults.data
        if type(data) is type(common):
            continue
        same = {
            key
            for key in vars(data)
            if _described(data, key) == _described(common, key) or is_dataclass(getattr(data, key))
        }
        unused = TASKS[task].unused
        listed = ", ".join(
            f"`{key}`" for key in vars(data) if key in same and f"data.{key}" not in unused
        )
        lines += _section(data, ["data"], f"`data` with `task: {task}`", same)
        lines.append(f"As for translation: {listed}.\n")
    return "\n".join(lines)


def _section(
    default: Any, places: list[str], title: str = "", omitted: Collection[str] = ()
) -> Iterator[str]:
    """Yield the lines about a dataclass at the given keys, and about nested dataclasses."""
    cls = type(default)
    title = title or ", ".join(f"`{place}`" for place in places) or "Top level"
    anchor = f" {{#{_name(cls)}}}" if len(places) > 1 else ""  # link target
    refused = "".join(f" {text}." for text in _unused(places[0])) if len(places) == 1 else ""
    yield f"\n## {title}{anchor}\n\n{escaped(cls.__doc__ or '')}{refused}\n"
    hints, docs = get_type_hints(cls, include_extras=True), attribute_docs(cls)
    prefix = f"{places[0]}." if len(places) == 1 else ""
    nested: dict[type, list[str]] = {}
    for name in vars(default):
        if name in omitted:
            continue
        key, inner = f"{prefix}{name}", _dataclass_in(hints[name])
        if inner and not omitted:
            nested.setdefault(inner, []).append(key)
        if inner and is_dataclass(getattr(default, name)):
            continue  # described as a section
        yield f"### `{key}`\n"
        values = ", ".join(f"`{task}`" for task in TASKS)
        values = values if key == "task" else _values(hints[name])
        tasks = [] if refused else _unused(key)
        facts = [f"{values} ({_defaults(key, default, name)})", *tasks]
        yield ". ".join(facts) + ".\n"
        yield f"{escaped(docs[name])}\n"
    for inner, inner_places in nested.items():
        value = getattr(default, inner_places[0].rpartition(".")[2])
        yield from _section(value if is_dataclass(value) else inner(), inner_places)


def _described(default: Any, key: str) -> tuple[str, Any] | None:
    """Return description and default of a key, or None if the key does not exist."""
    if not hasattr(default, key):
        return None
    return attribute_docs(type(default)).get(key, ""), getattr(default, key)


def _name(cls: type) -> str:
    return cls.__name__.removesuffix("Config").lower()


def _defaults(key: str, default: Any, name: str) -> str:
    texts = [f"`{_shown(getattr(default, name))}`"]
    section, _, last = key.partition(".")
    for task in TASKS if section in ("model", "training") else ():
        value = getattr(getattr(TASKS[task].defaults, section), last)
        if value != getattr(default, name):
            texts.append(f"with `task: {task}` `{_shown(value)}`")
    return ", ".join(texts)


def _shown(value: Any) -> str:
    """Return a default value in the syntax of a recipe."""
    return value if isinstance(value, str) and value else json.dumps(value)


def _unused(key: str) -> list[str]:
    """Return a note on the tasks that do not allow a key."""
    tasks = [
        f"`{task}`"
        for task in TASKS
        if any(f"{key}.".startswith(f"{prefix}.") for prefix in TASKS[task].unused)
    ]
    return [f"Not for `task`: {', '.join(tasks)}"] if tasks else []


def _values(hint: Any) -> str:
    """Return a description of the valid values of a key."""
    origin, options = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return f"{_values(options[0])}, or `null`"  # the only kind of union in the schema
    if origin is Annotated:
        return f"{_values(options[0])}, {_bounds(*options[1])}"
    if origin is Literal:
        return ", ".join(f"`{option}`" for option in options)
    if origin is tuple:
        return f"{_values(options[0])}, or a list of these"
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return f"A [{_name(hint)}](#{_name(hint)})"
    return _SCALARS[hint]


def _bounds(minimum: float, maximum: float) -> str:
    if maximum == _BELOW_ONE:
        return f"from {minimum:,} to below 1"
    if maximum not in _MOST:
        return f"from {minimum:,} to {maximum:,}"
    return "above 0" if 0 < minimum < 1 else f"{minimum:,} or more"


def _dataclass_in(hint: Any) -> type | None:
    """Return the dataclass in a type hint, such as `X`, `X | None` or `tuple[X, ...]`."""
    candidates = (hint, *get_args(hint))
    return next((cls for cls in candidates if isinstance(cls, type) and is_dataclass(cls)), None)
