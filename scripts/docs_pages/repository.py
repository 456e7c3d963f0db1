"""Sources of the site: the pages of docs/, and below repository/ the files that they link to."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Set
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

_LINK = re.compile(
    r"^(?P<fence> *```+).*?^(?P=fence)|`[^`\n]+`"  # code, in which nothing is a link
    r"|(?<=\]\()(?P<path>[^()\s#:]+)(?=[)#\s])",
    re.MULTILINE | re.DOTALL,
)
_AS_THEY_ARE = (".md", ".svg", ".png")


def write_sources(root: Path, folder: Path) -> None:
    """Write the source files of the site to a folder, which is replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    own = {f"docs/{path.name}" for path in (root / "docs").iterdir() if path.is_file()}
    paths = own | linked_files(root, [path for path in own if path.endswith(".md")])
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
    """Return the files outside of docs/ that are linked from `sources`, or from one another."""
    found: set[str] = set()
    waiting = list(sources)
    while waiting:
        source = waiting.pop()
        for path in targets(root, source):
            new = path not in found and not path.startswith(("docs/", "../"))
            if new and (root / path).is_file():
                found.add(path)
                waiting += [path] if path.endswith(".md") else []
    return found


def targets(root: Path, source: str) -> Iterator[str]:
    """Yield the paths, from the root, of the files that a file of the repository links to."""
    for match in _LINK.finditer((root / source).read_text(encoding="utf-8")):
        if match["path"] is not None:
            yield _target(source, match["path"])


def site_path(path: str) -> str:
    """Return the place in the site of a file of the repository; text is shown, not downloaded."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"repository/{path}" + ("" if path.endswith(_AS_THEY_ARE) else ".txt")


def source_of(page: str) -> str:
    """Return the file of the repository that a page of the site is made of."""
    inside, _, path = page.partition("repository/")
    return f"docs/{page}" if inside else path


def with_site_links(text: str, page: str, known: Set[str]) -> str:
    """Replace links to files of the repository by links to `known` files of the site.

    Other links stay as they are written, so that the warnings of the build name them.
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
