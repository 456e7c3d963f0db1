"""Docstrings of classes and attributes, as Markdown. Those of attributes are parsed from source."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from itertools import pairwise

_CODE = re.compile(r"(`[^`]+`)")


def class_source(cls: type) -> ast.ClassDef:
    """Return the syntax tree of a class."""
    [node] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    return node


def attribute_docs(node: ast.ClassDef) -> dict[str, str]:
    """Return the docstrings of annotated attributes: the string literals below them."""
    docs = {}
    for above, below in pairwise(node.body):
        if (
            isinstance(above, ast.AnnAssign)
            and isinstance(above.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            docs[above.target.id] = inspect.cleandoc(below.value.value)
    return docs


def escaped(text: str) -> str:
    """Escape Markdown markup outside of inline code."""
    parts = _CODE.split(text)
    parts[::2] = [re.sub(r"([*<\[])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)
