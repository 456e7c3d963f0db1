"""Imports are one-way: no module imports from a package to its right."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "seq2seq"
ORDER = [
    "errors", "extras", "files", "progress_bar", "tables", "task", "config", "machine",
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
    # `from seq2seq import Translator` reaches decoding; the version belongs to no package.
    return {"decoding" if name == "seq2seq" else name.partition(".")[2].split(".")[0]
             for name in names if name.split(".")[0] == "seq2seq"}  # fmt: skip


@pytest.mark.parametrize("package", ORDER)
def test_imports_are_one_way(package: str) -> None:
    files = sorted((PACKAGE / package).rglob("*.py")) or [PACKAGE / f"{package}.py"]
    allowed = set(ORDER[: ORDER.index(package) + 1])
    for path in files:
        assert imports(path) <= allowed, f"{path} imports {imports(path) - allowed}"


def test_every_module_is_in_the_architecture() -> None:
    packages = {p.stem if p.suffix == ".py" else p.name for p in PACKAGE.iterdir()}
    assert packages - {"__init__", "__main__", "__pycache__", "py"} - {"py.typed"} == set(ORDER)


def test_the_table_of_the_architecture_has_every_module() -> None:
    text = (PACKAGE.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
    text = text.partition("## Design decisions")[0]
    described, package = set(), ""
    for named, modules in re.findall(r"^\| (?:`(\S+)`)? ?\| (.*?) ?\| ", text, re.MULTILINE):
        package = named or package
        described |= {f"{package}{name}.py" for name in re.findall(r"`(\w+)`", modules)}
        described |= {package} if package.endswith(".py") else set()
    modules = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")}
    assert described == {name for name in modules if not Path(name).name.startswith("__")}


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "docs/extending.md", "docs/data-flow.md"])
def test_modules_that_the_documentation_names_exist(page: str) -> None:
    text = (PACKAGE.parent / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+\.py)`", text)) - {"tasks/NAME.py"}
    for name in named:
        found = [PACKAGE.parent / name, PACKAGE / name, *PACKAGE.glob(f"*/{name}")]
        assert any(path.exists() for path in found), name


@pytest.mark.parametrize("path", (PACKAGE / "tasks").glob("*.py"), ids=lambda path: path.stem)
def test_a_task_is_loaded_without_torch(path: Path) -> None:
    """Every command that reads a recipe loads it; what it connects is imported in its methods."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    own = {name for name in names if str(name).startswith("seq2seq.")}
    assert own <= {"seq2seq.config", "seq2seq.errors", "seq2seq.planning.sizes", "seq2seq.task"}


def test_search_does_not_import_models() -> None:
    for name in ("search", "rules"):
        assert imports(PACKAGE / "decoding" / f"{name}.py") <= {"decoding", "machine"}
