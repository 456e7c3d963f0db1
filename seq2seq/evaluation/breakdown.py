"""`seq2seq score --lines`: scores by sentence length, and the lines that differ most."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

import numpy as np

from seq2seq.evaluation.metrics import NAMES, VALIDATION_METRICS, make_metric, score
from seq2seq.evaluation.systems import System, TestSet
from seq2seq.tables import aligned
from seq2seq.text.words import words

LENGTHS = (1, 6, 11, 21, 41)
"""Lower bound of each length group, in words of the reference."""


def break_down(systems: Sequence[System], test_set: TestSet, count: int) -> dict[str, Any]:
    """Return a JSON object: scores by length, and the lines where the first two systems differ.

    count: maximum number of lines where the second system is better, and where it is worse.
    """
    better, worse = most_different(systems, test_set, count) if len(systems) > 1 else ([], [])
    return {"by_length": by_length(systems, test_set), "better": better, "worse": worse}


def most_different(
    systems: Sequence[System], test_set: TestSet, count: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return at most `count` lines where the second system is better, and where it is worse.

    Lines are sorted by their difference in sentence-level chrF2. Equal scores are left out.
    """
    first, second = systems[:2]
    metric = make_metric("chrf", lowercase=test_set.lowercase)
    compared = []
    for i, references in enumerate(zip(*test_set.references, strict=True)):
        old = metric.sentence_score(first.lines[i], references).score
        new = metric.sentence_score(second.lines[i], references).score
        compared.append(
            {
                "line": i + 1,
                "difference": round(new - old, 4),
                "source": test_set.sources[i] if test_set.sources else "",
                "reference": references[0],
                first.name: first.lines[i],
                second.name: second.lines[i],
            }
        )
    compared.sort(key=lambda line: -line["difference"])
    better = [line for line in compared[:count] if line["difference"] > 0]
    return better, [line for line in compared[::-1][:count] if line["difference"] < 0]


def mark_differences(text: str, other: str, before: str, after: str) -> str:
    """Return a text with markers around the words that differ from another text (a word diff)."""
    bare_words, other_words = ([word.rstrip() for word in words(side)] for side in (text, other))
    matcher = SequenceMatcher(None, bare_words, other_words, autojunk=False)
    matching = {
        i for start, _, size in matcher.get_matching_blocks() for i in range(start, start + size)
    }
    result = ""
    for i, (word, bare) in enumerate(zip(words(text), bare_words, strict=True)):
        result += word if i in matching else f"{before}{bare}{after}{word[len(bare) :]}"
    return result


def by_length(systems: Sequence[System], test_set: TestSet) -> list[dict[str, Any]]:
    """Return name, number of lines, and scores by system name, of each length group.

    The length is the number of words of the first reference.
    """
    lens = [len(words(text)) for text in test_set.references[0]]
    group_ids = np.digitize(lens, LENGTHS[1:])  # an empty reference belongs to the first group
    groups = []
    for group_id, (start, end) in enumerate(zip_longest(LENGTHS, LENGTHS[1:])):
        chosen = np.flatnonzero(group_ids == group_id).tolist()
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
            group[system.name] = {metric.key: round(metric.value, 4) for metric in scores}
        groups.append(group)
    return groups


def breakdown_text(breakdown: dict[str, Any], *, on_terminal: bool) -> str:
    """Return the result of `break_down` as text, with differing words marked."""
    groups = breakdown["by_length"]
    columns = [(key, name) for key in VALIDATION_METRICS for name in [*groups[0]][2:]]
    titles = [f"{name} {NAMES[key]}".strip() for key, name in columns]
    table = [["words of the reference", "lines", *titles]]
    for group in groups:
        values = [f"{group[name][key]:.2f}" for key, name in columns]
        table.append([group["group"], f"{group['lines']:,}", *values])
    before, after = ("\x1b[1m", "\x1b[0m") if on_terminal else ("[", "]")
    legend = "lines that differ most; differing words are " + ("bold" if on_terminal else "in []")
    parts = [aligned(table), [legend]]
    for line in (*breakdown["better"], *breakdown["worse"]):
        *_, first, second = line
        rows = [(key, line[key]) for key in ("source", "reference") if line[key]]
        for name, other in ((first, second), (second, first)):
            rows.append(
                (name, mark_differences(line[name], line[other], before, after) or "(empty)")
            )
        width = max(len(name) for name, _ in rows)
        head = f"line {line['line']}: {second} {line['difference']:+.1f} chrF2"
        parts.append([head, *(f"  {name:{width}}  {text}" for name, text in rows)])
    return "\n\n".join("\n".join(lines) for lines in parts)
