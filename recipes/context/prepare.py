"""Write LibreOffice's help pages, paragraphs in order, with a blank line between pages.

Usage: python recipes/context/prepare.py [LANGUAGE]

The packages come from `recipes/libreoffice/prepare.py`, and so do the splits of the pages.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "libreoffice"))
from prepare import SPLITS, broken_rule, paragraphs, read_help, run, split_of  # type: ignore[import-not-found]

PAGES = "usr/share/libreoffice/help"


def main(language: str) -> None:
    """Write data/context_en_LANGUAGE."""
    out = Path(f"data/context_en_{language}")
    out.mkdir(parents=True, exist_ok=True)
    packages = Path(f"data/libreoffice_en_{language}/packages").resolve()
    with tempfile.TemporaryDirectory() as name:
        for package in packages.glob("libreoffice-help-*.deb"):
            run(["dpkg-deb", "-x", str(package), name], Path(name))
        english, translated = (Path(name) / PAGES / code for code in ("en-US", language))
        pairs = [
            pair for pair in read_help(english, translated, Counter()) if not broken_rule(pair)
        ]
        order = {page: list(paragraphs(english / page)) for page in {pair.page for pair in pairs}}
    pairs.sort(key=lambda pair: (pair.page, order[pair.page].index(pair.key)))
    texts = {split: (list[str](), list[str]()) for split in SPLITS}
    for before, pair in zip([None, *pairs], pairs, strict=False):
        source, target = texts[split_of(pair)]
        if before and before.page != pair.page:
            source.append("")
            target.append("")
        source.append(pair.source)
        target.append(pair.target)
    for split, sides in texts.items():
        for code, lines in zip(("en", language), sides, strict=True):
            (out / f"{split}.{code}").write_text("".join(f"{x}\n" for x in lines), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "de")
