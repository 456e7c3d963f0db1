"""The page of the Python interface, from the docstrings of what the package exports."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator

from docs_pages.docstrings import attribute_docs, class_source, escaped

import seq2seq

_INTRODUCTION = """\
# Python

What `from seq2seq import` offers. On a CPU a `Translator` loads torch for a few options only.
"""


def page() -> str:
    """Return the page."""
    names = [name for name in seq2seq.__all__ if not name.startswith("_")]
    return "\n".join([_INTRODUCTION, *(line for name in names for line in _class(name))])


def _class(name: str) -> Iterator[str]:
    cls = getattr(seq2seq, name)
    node = class_source(cls)
    yield f"## {name}\n\n{escaped(inspect.getdoc(cls) or '')}\n"
    docs = attribute_docs(node)
    source = textwrap.dedent(inspect.getsource(cls)).splitlines()
    for member in node.body:
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            own, text = member.target.id, docs.get(member.target.id, "")
            header = ast.unparse(member)
        elif isinstance(member, ast.FunctionDef) and (text := ast.get_docstring(member) or ""):
            own, header = member.name, _header(member, source)
        else:
            continue
        if not own.startswith("_"):
            yield f"### `{name}.{own}`\n"
            yield "<!-- not run: a signature -->"
            yield f"```python\n{header}\n```\n\n{escaped(text)}\n"


def _header(function: ast.FunctionDef, source: list[str]) -> str:
    """Return a function's decorators and signature as they are in the source."""
    start = min([function.lineno, *(node.lineno for node in function.decorator_list)])
    lines = source[start - 1 : function.body[0].lineno - 1]
    return textwrap.dedent("\n".join(lines)).removesuffix(":")
