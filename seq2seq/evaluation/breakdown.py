"""Where systems differ: scores by length, and the lines that differ most."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

import numpy as np

from seq2seq.data.words import words, words_with_space
from seq2seq.evaluation.metrics import VALIDATION_METRICS, make_metric, score
from seq2seq.evaluation.systems import System, TestSet

LENGTHS = (1, 6, 11, 21, 41)
"""First number of words of each group."""
DEFAULT_LINES = 20

Marked = list[tuple[str, bool]]
"""The words of a text with the white space after them, each with whether only this text has it."""
Groups = list[dict[str, Any]]
"""Name and number of lines of each group, and the scores of each system by its name."""


def break_down(
    systems: Sequence[System], test_set: TestSet, num_lines: int | None = None
) -> dict[str, Any]:
    """Return a JSON object: scores by the length of lines, and lines of the first two systems.

    num_lines: number of lines in which the second system is better, and in which it is worse
    (by default `DEFAULT_LINES`).
    """
    count = DEFAULT_LINES if num_lines is None else num_lines
    better, worse = most_different(systems, test_set, count) if len(systems) > 1 else ([], [])
    groups = {"words of the reference": by_length(systems, test_set)}
    return {"groups": groups, "better": better, "worse": worse}


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


def marked(first: str, second: str) -> tuple[Marked, Marked]:
    """Return the words of two texts, with those marked that only one of them has there."""
    old, new = words_with_space(first), words_with_space(second)
    old_bare, new_bare = ([word.rstrip() for word in text] for text in (old, new))
    blocks = SequenceMatcher(None, old_bare, new_bare, autojunk=False).get_matching_blocks()
    old_same = {block.a + i for block in blocks for i in range(block.size)}
    new_same = {block.b + i for block in blocks for i in range(block.size)}
    return (
        [(word, i not in old_same) for i, word in enumerate(old)],
        [(word, i not in new_same) for i, word in enumerate(new)],
    )


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
