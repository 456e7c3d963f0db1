"""Damage a corpus: shuffle the targets of some pairs, and give others a target in a third language.

Usage: python recipes/selection/make_noise.py CLEAN.en CLEAN.de OTHER.en OTHER.fr OUT.en OUT.de

OTHER is a corpus with some of the same source sentences. OUT.labels has `ok`, `shuffled` or
`other` for each pair.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

SHUFFLED, OTHER = 0.3, 0.1
"""Shares of pairs with the target of another pair, and with a target in the third language."""


def main(clean: list[list[str]], third: list[list[str]], outputs: list[Path]) -> None:
    """Write the damaged corpus and its labels."""
    sources, targets = clean
    translations = dict(zip(*third, strict=True))
    order = list(range(len(sources)))
    random.Random(0).shuffle(order)
    shuffled, rest = order[: round(SHUFFLED * len(order))], order[round(SHUFFLED * len(order)) :]
    foreign = [i for i in rest if sources[i] in translations][: round(OTHER * len(order))]
    labels = dict.fromkeys(shuffled, "shuffled") | dict.fromkeys(foreign, "other")
    damaged = dict(zip(shuffled, (targets[i] for i in [*shuffled[1:], shuffled[0]]), strict=True))
    damaged |= {i: translations[sources[i]] for i in foreign}
    rows = (
        sources,
        [damaged.get(i, target) for i, target in enumerate(targets)],
        [labels.get(i, "ok") for i in range(len(sources))],
    )
    for path, lines in zip([*outputs, outputs[0].with_suffix(".labels")], rows, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    *inputs, out_source, out_target = map(Path, sys.argv[1:])
    texts = [path.read_text(encoding="utf-8").split("\n")[:-1] for path in inputs]
    main(texts[:2], texts[2:], [out_source, out_target])
