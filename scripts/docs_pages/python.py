"""Page of the Python API, generated from the docstrings of the public classes."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator

from docs_pages.docstrings import escaped

import seq2seq
from seq2seq.config import attribute_docs

_INTRODUCTION = """\
# Python

The public names of the package `seq2seq`.
"""


def page() -> str:
    """Return the page in Markdown."""
    names = [name for name in seq2seq.__all__ if not name.startswith("_")]
    return "\n".join([_INTRODUCTION, *(line for name in names for line in _class(name))])


def _class(name: str) -> Iterator[str]:
    cls = getattr(seq2seq, name)
    yield f"## {name}\n\n{escaped(inspect.getdoc(cls) or '')}\n"
    docs = attribute_docs(cls)
    source = inspect.getsource(cls).splitlines()
    [node] = ast.parse(inspect.getsource(cls)).body
    assert isinstance(node, ast.ClassDef)
    for member in node.body:
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            attribute = member.target.id
            if not attribute.startswith("_"):
                yield _attribute(ast.unparse(member), docs.get(attribute, ""))
        elif isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
            text = ast.get_docstring(member) or ""
            if any(ast.unparse(node) == "property" for node in member.decorator_list):
                assert member.returns
                yield _attribute(f"{member.name}: {ast.unparse(member.returns)}", text)
            elif text:
                yield f"### `{name}.{member.name}`\n"
                yield f"```pyi\n{_header(member, source)}: ...\n```\n\n{escaped(text)}\n"


def _attribute(header: str, text: str) -> str:
    described = textwrap.indent(escaped(text), "    ").lstrip()
    return f"`{header}`\n:   {described}\n" if text else f"`{header}`\n"


def _header(function: ast.FunctionDef, source: list[str]) -> str:
    """Return the decorators and the signature of a function, from its source."""
    start = min([function.lineno, *(node.lineno for node in function.decorator_list)])
    lines = source[start - 1 : function.body[0].lineno - 1]
    return textwrap.dedent("\n".join(lines)).removesuffix(":")
