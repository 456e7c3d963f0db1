"""Where systems differ: scores by length, and the lines that differ most."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

import numpy as np

from seq2seq.data.words import words
from seq2seq.evaluation.metrics import VALIDATION_METRICS, make_metric, score
from seq2seq.evaluation.systems import System, TestSet

LENGTHS = (1, 6, 11, 21, 41)
"""First number of words of each group."""

Groups = list[dict[str, Any]]
"""Name and number of lines of each group, and the scores of each system by its name."""


def break_down(systems: Sequence[System], test_set: TestSet, count: int) -> dict[str, Any]:
    """Return a JSON object: scores by the length of lines, and lines of the first two systems.

    count: number of lines in which the second system is better, and in which it is worse.
    """
    better, worse = most_different(systems, test_set, count) if len(systems) > 1 else ([], [])
    return {"by_length": by_length(systems, test_set), "better": better, "worse": worse}


def most_different(
    systems: Sequence[System], test_set: TestSet, count: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return at most `count` lines where the second system is better, and where it is worse.

    By chrF2 of the sentence, the largest differences first; equal lines are left out.
    """
    first, second = systems[:2]
    metric = make_metric("chrf", lowercase=test_set.lowercase)
    found = []
    for i, references in enumerate(zip(*test_set.references, strict=True)):
        old = metric.sentence_score(first.lines[i], references).score
        new = metric.sentence_score(second.lines[i], references).score
        found.append(
            {
                "line": i + 1,
                "difference": round(new - old, 4),
                "source": test_set.sources[i] if test_set.sources else "",
                "reference": references[0],
                first.name: first.lines[i],
                second.name: second.lines[i],
            }
        )
    found.sort(key=lambda line: -line["difference"])
    better = [line for line in found[:count] if line["difference"] > 0]
    return better, [line for line in found[::-1][:count] if line["difference"] < 0]


def marked(text: str, other: str, before: str, after: str) -> str:
    """Return a text with marks before and after the words that the other text lacks there."""
    own, others = ([word.rstrip() for word in words(side)] for side in (text, other))
    matcher = SequenceMatcher(None, own, others, autojunk=False)
    same = {
        i for start, _, size in matcher.get_matching_blocks() for i in range(start, start + size)
    }
    shown = ""
    for i, (word, bare) in enumerate(zip(words(text), own, strict=True)):
        shown += word if i in same else f"{before}{bare}{after}{word[len(bare) :]}"
    return shown


def by_length(systems: Sequence[System], test_set: TestSet) -> Groups:
    """Return scores by the number of words of the (first) reference."""
    lens = [len(words(text)) for text in test_set.references[0]]
    # An empty reference belongs to the first group.
    places = np.maximum(0, np.searchsorted(LENGTHS, lens, side="right") - 1)
    groups = []
    for place, (start, end) in enumerate(zip_longest(LENGTHS, LENGTHS[1:])):
        chosen = np.flatnonzero(places == place).tolist()
        if not chosen:
            continue
        name = f"{start} or more" if end is None else f"{start}-{end - 1}"
        group: dict[str, Any] = {"group": name, "lines": len(chosen)}
        references = [[lines[i] for i in chosen] for lines in test_set.references]
        for system in systems:
            scores = score(
                [system.lines[i] for i in chosen],
                references,
                tokenize=test_set.tokenize,
                lowercase=test_set.lowercase,
                keys=VALIDATION_METRICS,
            )
            group[system.name] = {each.key: round(each.value, 4) for each in scores}
        groups.append(group)
    return groups
