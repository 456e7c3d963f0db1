"""The result of `seq2seq score` as text."""

from __future__ import annotations

from itertools import chain
from typing import Any

from seq2seq.evaluation.breakdown import Groups, marked
from seq2seq.evaluation.comparison import LEVEL, MIN_DIFFERENT, Result
from seq2seq.evaluation.metrics import NAMES, VALIDATION_METRICS
from seq2seq.tables import aligned

RULE = (
    f"A difference is significant if both tests have p < {LEVEL} and {MIN_DIFFERENT} lines or more "
    "differ."
)
ABOUT_MODELS = (
    "This is about these models, and not about the settings of their recipes: another seed of the "
    "same recipe differs, too."
)


def result_text(result: Result) -> str:
    """Return a table of scores, a sentence for each comparison, and how they were computed."""
    rows = [["", *(score.name for score in result.scores[0])]]
    notes = {score.name: score.signature for score in result.scores[0] if score.signature}
    for system, scores in zip(result.systems, result.scores, strict=True):
        rows.append([system.name, *(score.text for score in scores)])
        details = [*(score.details for score in scores), system.search]
        notes[system.name] = "  ".join(filter(None, details))
    sentences = [each.sentence() for each in chain(*result.comparisons)]
    if sentences:
        sentences.append(RULE)
        if any(system.search for system in result.systems):  # made by a run
            sentences.append(ABOUT_MODELS)
    shown_notes = [f"  {name:7}  {text}" for name, text in notes.items() if text]
    parts = [part for part in (aligned(rows), sentences, shown_notes) if part]
    return "\n\n".join("\n".join(lines) for lines in parts)


def breakdown_text(breakdown: dict[str, Any], *, on_terminal: bool) -> str:
    """Return tables, and the lines that differ most: differing words bold, or in brackets."""
    before, after = ("\x1b[1m", "\x1b[0m") if on_terminal else ("[", "]")
    parts = [aligned(group_rows(breakdown["by_length"]))]
    for line in (*breakdown["better"], *breakdown["worse"]):
        *_, first, second = line
        rows = [(key, line[key]) for key in ("source", "reference") if line[key]]
        for name, other in ((first, second), (second, first)):
            rows.append((name, marked(line[name], line[other], before, after) or "(empty)"))
        width = max(len(name) for name, _ in rows)
        head = f"line {line['line']}: {second} {line['difference']:+.1f} chrF2"
        parts.append([head, *(f"  {name:{width}}  {text}" for name, text in rows)])
    return "\n\n".join("\n".join(lines) for lines in parts)


def group_rows(groups: Groups) -> list[list[str]]:
    """Return rows of cells: a header, and a column for each metric of each system."""
    columns = [(key, name) for key in VALIDATION_METRICS for name in [*groups[0]][2:]]
    titles = [f"{name} {NAMES[key]}".strip() for key, name in columns]
    rows = [["words of the reference", "lines", *titles]]
    for group in groups:
        values = [f"{group[name][key]:.2f}" for key, name in columns]
        rows.append([group["group"], f"{group['lines']:,}", *values])
    return rows
