"""Sources of the site: the pages of docs/, and the linked files in repository/."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Set
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

_LINK = re.compile(
    r"^(?P<fence> *```+).*?^(?P=fence)|`[^`\n]+`"  # code has no links
    r"|(?<=\]\()(?P<path>[^()\s#:]+)(?=[)#\s])",
    re.MULTILINE | re.DOTALL,
)
_AS_THEY_ARE = (".md", ".svg", ".png")


def write_sources(root: Path, folder: Path) -> None:
    """Write the sources of the site to a folder. An existing folder is replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    docs = {f"docs/{path.name}" for path in (root / "docs").iterdir() if path.is_file()}
    paths = docs | linked_files(root, [path for path in docs if path.endswith(".md")])
    known = {site_path(path) for path in paths}
    for path in sorted(paths):
        page = site_path(path)
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        if page.endswith(".md"):
            text = (root / path).read_text(encoding="utf-8")
            (folder / page).write_text(with_site_links(text, page, known), encoding="utf-8")
        else:
            shutil.copyfile(root / path, folder / page)


def linked_files(root: Path, sources: Iterable[str]) -> set[str]:
    """Return the files outside of docs/ that `sources` link to, directly or indirectly."""
    linked: set[str] = set()
    queue = list(sources)
    while queue:
        source = queue.pop()
        for path in targets(root, source):
            is_new = path not in linked and not path.startswith(("docs/", "../"))
            if is_new and (root / path).is_file():
                linked.add(path)
                queue += [path] if path.endswith(".md") else []
    return linked


def targets(root: Path, source: str) -> Iterator[str]:
    """Yield the link targets of a file, as paths relative to the root."""
    for match in _LINK.finditer((root / source).read_text(encoding="utf-8")):
        if match["path"] is not None:
            yield _target(source, match["path"])


def site_path(path: str) -> str:
    """Return the path in the site of a file. Source code gets .txt, so that browsers show it."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"repository/{path}" + ("" if path.endswith(_AS_THEY_ARE) else ".txt")


def source_of(page: str) -> str:
    """Return the file of the repository for a page of the site."""
    inside, _, path = page.partition("repository/")
    return f"docs/{page}" if inside else path


def with_site_links(text: str, page: str, known: Set[str]) -> str:
    """Replace links to files of the repository by links to `known` files of the site.

    Unknown links are kept, and the build warns about them.
    """
    source = source_of(page)

    def replaced(match: re.Match[str]) -> str:
        if match["path"] is None:
            return match[0]
        place = site_path(_target(source, match["path"]))
        return relpath(place, dirname(page)) if place in known else match[0]

    return _LINK.sub(replaced, text)


def _target(source: str, link: str) -> str:
    return normpath(join(dirname(source), link))
