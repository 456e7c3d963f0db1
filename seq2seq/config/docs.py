"""Descriptions of recipe keys: the docstrings of attributes, which Python does not keep."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from itertools import pairwise
from typing import Any

import yaml

from seq2seq.config.schema import TASKS


def class_source(cls: type) -> ast.ClassDef:
    """Return the syntax tree of a class."""
    [node] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    return node


def attribute_docs(cls: type) -> dict[str, str]:
    """Return the docstrings of the annotated attributes of a class, including inherited ones."""
    docs = {}
    for base in reversed(cls.__mro__):
        body = class_source(base).body if base.__module__ != "builtins" else []
        for above, below in pairwise(body):
            if (
                isinstance(above, ast.AnnAssign)
                and isinstance(above.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            ):
                docs[above.target.id] = inspect.cleandoc(below.value.value)
    return docs


def commented_yaml(tree: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    """Return a recipe as YAML with a comment on each key.

    comments: by key, such as `model.dim`. Other keys have the first sentence of their docstring.
    """
    lines = _commented(tree, comments, TASKS[tree.get("task", "translation")].defaults, "")
    return "".join(f"{line:44}  # {comment}\n" for line, comment in lines)


def _commented(
    tree: Mapping[str, Any], comments: Mapping[str, str], default: Any, prefix: str
) -> Iterator[tuple[str, str]]:
    """Yield lines of YAML with their comments. default: dataclass of the section at `prefix`."""
    docs = attribute_docs(type(default))
    for name, value in tree.items():
        key, inner = f"{prefix}{name}", getattr(default, name)
        line = f"{'  ' * prefix.count('.')}{name}:"
        text = inner.__doc__ if is_dataclass(inner) else docs[name]
        comment = comments.get(key, _first_sentence(text or ""))
        if is_dataclass(inner):
            yield line, comment
            yield from _commented(value, comments, inner, f"{key}.")
        else:
            yield f"{line} {_flow(value)}", comment


def _first_sentence(text: str) -> str:
    return re.split(r"(?<!\bal)\.(?: |$)", " ".join(text.split()))[0]


def _flow(value: Any) -> str:
    """Return a value as YAML on one line. A list with one item becomes the item."""
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")
