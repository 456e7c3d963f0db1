"""Robustness: scores of a test set with typos, capitals and other changes of its text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from seq2seq.data.random_numbers import generators
from seq2seq.evaluation.metrics import VALIDATION_METRICS, score
from seq2seq.text.augment import CHANGES, Pair, join

Robustness = dict[str, dict[str, float]]
"""Scores of the unchanged test set (`clean`) and under each change, and the chrF2 lost by it."""


def changed_pairs(pairs: Sequence[Pair]) -> Iterator[tuple[str, list[Pair]]]:
    """Yield the name of each change, and all pairs after it."""
    yield "clean", list(pairs)
    for name, change in CHANGES.items():
        if name != "copy":  # not something that users type
            random = generators(np.arange(len(pairs)), seed=0, epoch=0)
            yield name, list(map(change, pairs, random))
    yield "join", [join(pairs[i : i + 2]) for i in range(0, len(pairs), 2)]


def robustness(
    translate: Callable[[Sequence[str]], Sequence[str]], pairs: Sequence[Pair], *, tokenize: str
) -> Robustness:
    """Return BLEU and chrF2 of test pairs as they are, and under each change of data.augment.

    Changes of both sides also change the references. `join` puts two lines on one.
    """
    table: Robustness = {}
    for name, changed in changed_pairs(pairs):
        sources, references = zip(*changed, strict=True)
        hypotheses = translate(sources)
        scores = score(hypotheses, [references], tokenize=tokenize, keys=VALIDATION_METRICS)
        table[name] = {metric.key: metric.value for metric in scores}
        table[name]["chrf_lost"] = table["clean"]["chrf"] - table[name]["chrf"]
    return table


def robustness_rows(table: Robustness) -> list[list[str]]:
    """Return a table with a header."""
    rows = [[name, *(f"{value:.2f}" for value in row.values())] for name, row in table.items()]
    return [["change", "BLEU", "chrF2", "chrF2 lost"], *rows]
