"""A recipe as YAML, with a comment on every line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

COMMENT_COLUMN = 44


@dataclass(frozen=True)
class Key:
    """A key of a recipe, its value and why it has it."""

    name: str
    value: Any
    why: str


Section = Sequence[Key]


def recipe_text(title: Sequence[str], top: Section, sections: Mapping[str, Section]) -> str:
    """Return the recipe: comment lines, keys outside of sections, and sections."""
    lines = [f"# {line}" for line in title]
    lines += [_line(key, "") for key in top]
    for name, keys in sections.items():
        lines.append(f"{name}:")
        lines += [_line(key, "  ") for key in keys]
    return "".join(f"{line}\n" for line in lines)


def _line(key: Key, indent: str) -> str:
    if isinstance(key.value, list) and len(key.value) > 1:
        head = f"{indent}{key.name}:".ljust(COMMENT_COLUMN) + f"# {key.why}"
        return "\n".join([head, *(f"{indent}  - {_flow(item)}" for item in key.value)])
    value = key.value[0] if isinstance(key.value, list) else key.value
    return f"{indent}{key.name}: {_flow(value)}".ljust(COMMENT_COLUMN) + f"  # {key.why}"


def _flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")
