"""Generate pages of docs/ from the code, and the sources of the site in build/docs.

python scripts/docs_pages && zensical serve
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from docs_pages import commands, python, recipe, repository  # noqa: E402

PAGES = {"recipe.md": recipe.page, "commands.md": commands.page, "python.md": python.page}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (ROOT / "docs" / name).write_text(page(), encoding="utf-8")
    repository.write_sources(ROOT, ROOT / "build" / "docs")
