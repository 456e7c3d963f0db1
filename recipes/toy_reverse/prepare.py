"""Create a toy language pair: the target is the source's letters in reverse order.

Usage: python recipes/toy_reverse/prepare.py [--out data/toy_reverse]
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

LETTERS = "abcdefgh"
SIZES = {"train": 8000, "dev": 100, "test": 200}


def main() -> None:
    """Write train, dev and test sets without repeated sequences."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("data/toy_reverse"), metavar="DIR")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(1)
    sequences: dict[tuple[str, ...], None] = {}
    while len(sequences) < sum(SIZES.values()):
        sequences[tuple(rng.choices(LETTERS, k=rng.randint(4, 8)))] = None
    rest = iter(sequences)
    for split, size in SIZES.items():
        rows = [next(rest) for _ in range(size)]
        for language, step in (("src", 1), ("rev", -1)):
            text = "".join(" ".join(row[::step]) + "\n" for row in rows)
            path = out / f"{split}.{language}"
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
