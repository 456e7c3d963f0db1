"""Output of `seq2seq score` as text."""

from __future__ import annotations

from itertools import chain
from typing import Any

from seq2seq.evaluation.breakdown import Groups, mark_differences
from seq2seq.evaluation.comparison import LEVEL, LOWER_IS_BETTER, MIN_DIFFERENT, Result
from seq2seq.evaluation.metrics import NAMES, VALIDATION_METRICS
from seq2seq.tables import aligned

RULE = (
    f"Significant: p < {LEVEL} in both tests (paired bootstrap resampling and approximate "
    f"randomisation), and at least {MIN_DIFFERENT} lines differ."
)
ABOUT_MODELS = (
    "The tests compare these models, not their recipes: another seed of the same recipe gives "
    "another model."
)


def result_text(result: Result) -> str:
    """Return a table of scores, a sentence for each comparison, signatures and search settings."""
    rows = [["", *(score.name for score in result.scores[0])]]
    for i, score in enumerate(result.scores[0], start=1):
        if score.key.startswith(LOWER_IS_BETTER):
            rows[0][i] += " (lower is better)"
    notes = {score.name: score.signature for score in result.scores[0] if score.signature}
    for system, scores in zip(result.systems, result.scores, strict=True):
        rows.append([system.name, *(score.text for score in scores)])
        details = [*(score.details for score in scores), system.search]
        notes[system.name] = "  ".join(filter(None, details))
    sentences = [comparison.sentence() for comparison in chain(*result.comparisons)]
    if sentences:
        sentences.append(RULE)
        if any(system.search for system in result.systems):  # a run, not a file
            sentences.append(ABOUT_MODELS)
    footnotes = [f"  {name:7}  {text}" for name, text in notes.items() if text]
    parts = [part for part in (aligned(rows), sentences, footnotes) if part]
    return "\n\n".join("\n".join(lines) for lines in parts)


def breakdown_text(breakdown: dict[str, Any], *, on_terminal: bool) -> str:
    """Return scores by length and the lines that differ most, with differing words marked."""
    before, after = ("\x1b[1m", "\x1b[0m") if on_terminal else ("[", "]")
    legend = "lines that differ most; differing words are " + ("bold" if on_terminal else "in []")
    parts = [aligned(group_rows(breakdown["by_length"])), [legend]]
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


def group_rows(groups: Groups) -> list[list[str]]:
    """Return table rows for groups of lines, with a column for each system and metric."""
    columns = [(key, name) for key in VALIDATION_METRICS for name in [*groups[0]][2:]]
    titles = [f"{name} {NAMES[key]}".strip() for key, name in columns]
    rows = [["words of the reference", "lines", *titles]]
    for group in groups:
        values = [f"{group[name][key]:.2f}" for key, name in columns]
        rows.append([group["group"], f"{group['lines']:,}", *values])
    return rows
