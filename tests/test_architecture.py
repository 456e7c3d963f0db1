"""Imports are one-way: no module imports from a package to its right."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "seq2seq"
ARCHITECTURE = (PACKAGE.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
ORDER = re.findall(r"\w+", ARCHITECTURE.partition("## The packages")[2].partition("A module")[0])
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}


def imports(module: str) -> set[str]:
    """Return the modules that a module imports, also within functions and for types alone."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.module and node.level == 0, f"{module}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in MODULES else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Call):  # by name
            function = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if function in ("import_module", "__import__") and module != "seq2seq":
                assert isinstance(node.args[0], ast.Constant), f"{module}: unknown import"
                found.add(str(node.args[0].value))
    return found & MODULES.keys() - {module}


def test_imports_have_no_circle() -> None:
    TopologicalSorter({module: imports(module) for module in MODULES}).prepare()


@pytest.mark.parametrize("package", ORDER)
def test_imports_are_one_way(package: str) -> None:
    own = [name for name in MODULES if f"{name}.".startswith(f"seq2seq.{package}.")]
    assert own
    left = {f"seq2seq.{name}" for name in ORDER[: ORDER.index(package) + 1]}
    # The package itself, which offers what is to its right, is for `cli` alone.
    left |= {"seq2seq"} if package in ("doctor", "cli") else set()
    for module in own:
        right = [name for name in imports(module) if ".".join(name.split(".")[:2]) not in left]
        assert not right, f"{module} imports {right}"


def test_every_module_is_in_the_architecture() -> None:
    packages = {p.stem if p.suffix == ".py" else p.name for p in PACKAGE.iterdir()}
    assert packages - {"__init__", "__main__", "__pycache__", "py"} - {"py.typed"} == set(ORDER)


def test_modules_that_the_architecture_names_exist() -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", ARCHITECTURE))
    for name in named:
        found = [PACKAGE.parent / name, PACKAGE / name, *PACKAGE.glob(f"*/{name}")]
        assert any(path.exists() for path in found), name


def test_prepare_does_not_load_torch(recipe: Path, corpus: Path) -> None:
    """It would take a second, and 200 MB beside a large corpus."""
    text = recipe.with_name("text.yaml")
    text.write_text(
        f"{{task: language_model, data: {{text: {corpus}/train.en, store: {corpus}/store}},"
        " tokenizer: {kind: char}, model: {context: 8}}"
    )
    code = """
import sys
from seq2seq.cli import main
main(sys.argv[1:])
assert 'torch' not in sys.modules
"""
    for name in (recipe, text):
        subprocess.run([sys.executable, "-c", code, "prepare", str(name)], check=True)


def test_search_does_not_import_models() -> None:
    for name in ("search", "rules"):
        packages = {module.split(".")[1] for module in imports(f"seq2seq.decoding.{name}")}
        assert packages <= {"config", "decoding", "machine"}
