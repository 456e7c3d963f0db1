"""Write pairs of translations of which only the first has the term that fits the context.

Usage: python recipes/context/contrast.py TEXT.en TEXT.de JOINED.en OUT

OUT.en has the lines of JOINED.en whose own text has a term of two German translations of the same
gender, OUT.right their references, and OUT.wrong the references with the other term. Which term
fits is often only in the lines before. A model is scored by the share of lines where OUT.right is
more probable.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

TERMS = {
    "line": [{"Linie": "Zeile", "Linien": "Zeilen"}, {"Zeile": "Linie", "Zeilen": "Linien"}],
    "number": [
        {"Zahl": "Nummer", "Zahlen": "Nummern"},
        {"Nummer": "Zahl", "Nummern": "Zahlen"},
    ],
    "field": [
        {"Feld": "Datenfeld", "Felder": "Datenfelder"},
        {"Datenfeld": "Feld", "Datenfelder": "Felder"},
    ],
    "area": [{"Bereich": "Abschnitt", "Bereiche": "Abschnitte"}],
    "section": [{"Abschnitt": "Bereich", "Abschnitte": "Bereiche"}],
}
"""German terms of an English word, with another term for each."""


def contrasts(source: str, target: str) -> list[str]:
    """Return the wrong variants of a translation."""
    found = []
    for word, changes in TERMS.items():
        if re.search(rf"\b{word}s?\b", source, re.IGNORECASE):
            found += [replaced(target, change) for change in changes]
    return [variant for variant in found if variant != target]


def replaced(text: str, change: dict[str, str]) -> str:
    """Return a text with other words."""
    return re.sub(rf"\b({'|'.join(change)})\b", lambda match: change[match[0]], text)


def main(*names: str) -> None:
    """Write the three files."""
    *inputs, out = map(Path, names)
    rows = []
    texts = (path.read_text(encoding="utf-8").split("\n") for path in inputs)
    for source, target, joined in zip(*texts, strict=True):
        rows += [(joined, target, wrong) for wrong in contrasts(source, target)]
    for suffix, lines in zip(("en", "right", "wrong"), zip(*rows, strict=True), strict=True):
        Path(f"{out}.{suffix}").write_text("".join(f"{x}\n" for x in lines), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
