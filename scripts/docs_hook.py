"""Hook of mkdocs.yml: adds the repository's files that pages link to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from docs_pages import repository
from mkdocs.structure.files import File, Files, InclusionLevel

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add files that are not in docs/."""
    root = _root(config)
    sources = [repository.source_of(page.src_uri) for page in files.documentation_pages()]
    for path in sorted(repository.linked_files(root, sources)):
        files.append(
            File.generated(
                config,
                repository.site_path(path),
                abs_src_path=str(root / path),
                inclusion=InclusionLevel.NOT_IN_NAV,
            )
        )
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Direct links between files of the repository to their places in the site."""
    return repository.with_site_links(markdown, page.file.src_uri, {file.src_uri for file in files})


def _root(config: MkDocsConfig) -> Path:
    return Path(config.config_file_path).parent
