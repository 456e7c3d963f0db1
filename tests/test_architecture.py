"""Imports are one-way: no module imports from a package to its right."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "seq2seq"
ORDER = [
    "errors", "extras", "folders", "progress_bar", "tables", "task", "config", "machine",
    "processes", "data", "preparation", "model", "training", "decoding", "evaluation", "export",
    "report", "planning", "doctor", "tasks", "cli",
]  # fmt: skip


def imports(path: Path) -> set[str]:
    """Return the packages that a file imports from, including imports in functions.

    The interface of a task names the types of packages to its right, without importing them.
    """
    names, tree = set(), ast.parse(path.read_text(encoding="utf-8"))
    if path.name == "task.py":
        tree.body = [node for node in tree.body if not isinstance(node, ast.If)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    # `from seq2seq import Translator` reaches decoding; the version is nobody's room.
    return {"decoding" if name == "seq2seq" else name.partition(".")[2].split(".")[0]
             for name in names if name.split(".")[0] == "seq2seq"}  # fmt: skip


@pytest.mark.parametrize("room", ORDER)
def test_imports_are_one_way(room: str) -> None:
    files = sorted((PACKAGE / room).rglob("*.py")) or [PACKAGE / f"{room}.py"]
    allowed = set(ORDER[: ORDER.index(room) + 1])
    for path in files:
        assert imports(path) <= allowed, f"{path} imports {imports(path) - allowed}"


def test_every_module_is_in_the_architecture() -> None:
    rooms = {p.stem if p.suffix == ".py" else p.name for p in PACKAGE.iterdir()}
    assert rooms - {"__init__", "__main__", "__pycache__", "py"} - {"py.typed"} == set(ORDER)


def test_search_does_not_import_models() -> None:
    for name in ("search", "beams"):
        assert imports(PACKAGE / "decoding" / f"{name}.py") <= {"decoding", "machine"}
