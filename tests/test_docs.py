"""The documentation: the site builds without dead links, and every block of code runs."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest
from commands import ENVIRONMENT
from docs_pages import repository
from docs_pages.__main__ import PAGES as PAGES_OF_CODE
from docs_pages.commands import commands
from forked import served_command
from markdown import markdown

from seq2seq.config import config_of, read_recipe, resolve

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
_BLOCK = re.compile(
    r"(?:^ *<!-- not run: (?P<reason>(?:(?!-->).)+?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


_ABSENT = re.compile(r"^<!-- starts without: (.+?) -->$", re.MULTILINE)
"""Names of what a page makes itself, and the prepared folder has for the others."""


@dataclass(frozen=True)
class Block:
    """A fenced block of code of a page."""

    line: int
    language: str
    code: str
    reason: str | None
    """Why it is not run."""


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(
            line=text.count("\n", 0, match.start("code")),
            language=match["language"],
            code=textwrap.dedent(match["code"]),
            reason=match["reason"],
        )
        for match in _BLOCK.finditer(text)
    ]


# The site


def build_site(root: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Build a repository's site in `folder`/site; any warning fails."""
    repository.write_sources(root, folder / "build" / "docs")
    shutil.copy(root / "mkdocs.yml", folder)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    return subprocess.run(
        command, cwd=folder, env=os.environ | {"NO_COLOR": "1"}, capture_output=True, text=True
    )


def test_the_site_builds_without_warnings_and_needs_no_network(tmp_path: Path) -> None:
    done = build_site(ROOT, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "site"
    assert (site / "index.html").exists()
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|link|img)[^>]+(?:src|href)=\"?(?:https?:)?//", page.read_text()
        )
        assert not loaded, page
    linked = repository.linked_files(ROOT, PAGES[1:])
    assert "scripts/RESULTS.md" in linked
    for path in linked:  # there are copies
        place = site / repository.site_path(path)
        if place.suffix == ".md":
            place = place.with_name("index.md" if place.stem == "README" else place.name)
            place = place.with_suffix(".html")
        assert place.exists()


def test_the_navigation_has_every_page() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = re.findall(r"[\w-]+\.md", text.partition("\nnav:\n")[2])
    assert sorted(f"docs/{name}" for name in named) == PAGES[1:]


ALL_PAGES = [
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "scripts/*.md", "recipes/*/*.md")
    for path in sorted(ROOT.glob(pattern))
]


@pytest.mark.parametrize("page", ALL_PAGES)
def test_links_between_files_of_the_repository_work_without_the_site(page: str) -> None:
    for path in repository.targets(ROOT, page):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("name", PAGES_OF_CODE)
def test_the_pages_made_of_the_code_are_up_to_date(name: str) -> None:
    written = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert written == PAGES_OF_CODE[name](), "run: python scripts/docs_pages"


# Numbers


def test_the_numbers_of_the_readme_are_those_of_the_results() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    _, why, _ = re.split(r"^## Why$|^## Where to go$", readme, flags=re.MULTILINE)
    claims = re.findall(r"(.*?)\[[^]]+\]\(([^)#]+)\)", why, re.DOTALL)
    numbers = [(path, re.findall(r"\d[\d.,]*\d|\d", text)) for text, path in claims]
    assert sum(len(found) for _, found in numbers) >= 6
    for path, found in numbers:
        results = (ROOT / path).read_text(encoding="utf-8")
        for number in found:
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.]*\d)", results), (number, path)
    for score in re.findall(r"^(?:BLEU|chrF2) +([\d.]+) ±", readme, re.MULTILINE):
        assert score in (ROOT / "recipes/libreoffice/RESULTS.md").read_text(encoding="utf-8")


# Blocks of code


@pytest.fixture(scope="session")
def environment(prepared: Path) -> Iterator[dict[str, str]]:
    with served_command() as folder:
        path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
        yield ENVIRONMENT | {"PATH": path, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_the_blocks_of_a_page_run_one_after_the_other(
    prepared: Path,
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    page: str,
) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(prepared, folder, symlinks=True)
    for absent in _ABSENT.findall((ROOT / page).read_text(encoding="utf-8")):
        for name in absent.split():
            shutil.rmtree(folder / name)
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}
    for block in blocks(page):
        where = f"{page}, line {block.line}"
        if block.reason or block.language == "text":
            continue
        if block.language == "pyi":
            ast.parse(block.code)
        elif block.language == "python":
            exec(compile("\n" * block.line + block.code, page, "exec"), names)
        elif block.language == "yaml":
            load_as_recipe(block.code, folder / "fragment.yaml")
        elif block.language == "sh":
            bash = ["bash", "-euo", "pipefail", "-c", block.code]
            none = subprocess.DEVNULL
            done = subprocess.run(
                bash, env=environment, stdin=none, capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, f"{where}:\n{block.code}\n{done.stdout}\n{done.stderr}"
        else:
            pytest.fail(f"{where}: a block of '{block.language}' needs <!-- not run: REASON -->")


def load_as_recipe(text: str, path: Path) -> None:
    """Read a recipe, or a part of one, whose keys and values must be valid."""
    path.write_text(text, encoding="utf-8")
    tree = read_recipe(path)
    config_of(tree, str(path))
    data = tree.get("data") or {}
    if "train" in data or "text" in data:
        resolve(tree, str(path))


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_code_is_fenced_and_found(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    html = markdown(text, extensions=["pymdownx.superfences", "tables", "sane_lists"])
    assert html.count("<pre>") == len(blocks(page))
    assert text.count("<!-- not run") == sum(block.reason is not None for block in blocks(page))


@pytest.mark.parametrize("command", ["translate", "rerank"])
def test_every_option_has_an_example(command: str) -> None:
    pages = "docs/decoding.md", "docs/text.md", "docs/languages.md"
    run = [block for page in pages for block in blocks(page) if not block.reason]
    examples = (shlex.split(block.code) for block in run if block.language == "sh")
    shown = set(chain.from_iterable(examples))
    common = {"--help", "--errors", "--checkpoint", "--no-sample", "--output"}
    for action in commands()[command]._actions:
        options = {option for option in action.option_strings if option.startswith("--")}
        if options and not options & common:
            assert options & shown, options
