"""The result of `seq2seq score` as text, and as a self-contained page."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

from seq2seq.evaluation.breakdown import Groups, marked
from seq2seq.evaluation.comparison import LEVEL, MIN_DIFFERENT, RESAMPLES, Result, shown_fact
from seq2seq.evaluation.metrics import NAMES, VALIDATION_METRICS
from seq2seq.report.page import page, paragraphs, table, text_fields
from seq2seq.tables import aligned

INTERVALS = f"± is half of the 95 % confidence interval, by {RESAMPLES:,} bootstrap resamples."
RULE = (
    f"A difference is significant if both tests have p < {LEVEL} and {MIN_DIFFERENT} lines or more "
    "differ."
)
ABOUT_MODELS = (
    "This is about these models, and not about the settings of their recipes: another seed of the "
    "same recipe differs, too."
)

Show = Callable[[str], str]
"""Formats a text."""


def result_text(result: Result) -> str:
    """Return the scores; of several systems, as a table with a sentence for each comparison."""
    searches = {
        system.name: system.facts["search"] for system in result.systems if "search" in system.facts
    }
    if len(result.systems) == 1:
        lines = []
        for each in result.scores[0]:
            value = f"{each.name:7} {each.value:6.2f}{each.margin}  {each.details}".rstrip()
            lines += [value, f"        {each.signature}"]
        return "\n".join([*lines, *(f"search  {search}" for search in searches.values())])
    sentences = [*(each.sentence() for each in result.comparisons), RULE]
    if searches:  # made by runs
        sentences.append(ABOUT_MODELS)
    signatures = {each.name: each.signature for each in result.scores[0] if each.signature}
    notes = [f"  {name:7}  {text}" for name, text in signatures.items()]
    notes += [f"  {name}  {search}" for name, search in searches.items()]
    return "\n\n".join("\n".join(lines) for lines in (aligned(result.table()), sentences, notes))


def breakdown_text(breakdown: dict[str, Any], *, on_terminal: bool) -> str:
    """Return tables, and the lines that differ most: differing words bold, or in brackets."""
    before, after = ("\x1b[1m", "\x1b[0m") if on_terminal else ("[", "]")
    parts = [aligned(group_rows(groups, title)) for title, groups in breakdown["groups"].items()]
    for line in (*breakdown["better"], *breakdown["worse"]):
        rows = _line_rows(line, str, lambda text: f"{before}{text}{after}")
        width = max(len(name) for name, _ in rows)
        head = f"line {line['line']}: {rows[-1][0]} {line['difference']:+.1f} chrF2"
        parts.append([head, *(f"  {name:{width}}  {text}" for name, text in rows)])
    return "\n\n".join("\n".join(lines) for lines in parts)


def comparison_page(result: Result, breakdown: dict[str, Any]) -> str:
    """Return a page: scores, what they mean, where the systems differ."""
    names = [system.name for system in result.systems]
    has_intervals = result.scores[0][0].interval is not None
    body = [
        table(result.table()),
        paragraphs([INTERVALS] if has_intervals else [], "note"),
        paragraphs([each.sentence() for each in result.comparisons]),
        paragraphs([RULE] if result.comparisons else [], "note"),
        paragraphs([f"Note: {note}" for note in result.notes]),
    ]
    for title, groups in breakdown["groups"].items():
        body.append(f"<h2>By {escape(title)}</h2>{table(group_rows(groups))}")
    if breakdown["better"] or breakdown["worse"]:
        note = "By chrF2 of the line. Words that only one of the two has are marked."
        body += ["<h2>Lines that differ most</h2>", paragraphs([note], "note")]
        for name, lines in ((names[1], breakdown["better"]), (names[0], breakdown["worse"])):
            if lines:
                body.append(f"<h3>Where {escape(name)} is better</h3>")
            for line in lines:
                texts = _line_rows(line, escape, lambda text: f"<mark>{escape(text)}</mark>")
                caption = f"line {line['line']}: {line['difference']:+.1f} chrF2"
                body.append(text_fields(texts, caption))
    body.append("<h2>How this was measured</h2>")
    rows = [[each.name, each.signature] for each in result.scores[0] if each.signature]
    for system in result.systems:
        rows += [[f"{system.name}: {key}", shown_fact(x)] for key, x in system.facts.items()]
    body.append(table([["", ""], *rows], kind="text"))
    title = " and ".join(names) if len(names) < 3 else f"{len(names)} systems"
    return page(f"Comparison of {title}" if len(names) > 1 else f"Scores of {title}", body)


def group_rows(groups: Groups, corner: str = "") -> list[list[str]]:
    """Return rows of cells: a header, and a column for each metric of each system."""
    columns = [(key, name) for key in VALIDATION_METRICS for name in [*groups[0]][2:]]
    header = [corner, "lines", *(f"{name} {NAMES[key]}".strip() for key, name in columns)]
    rows = [header]
    for group in groups:
        values = [f"{group[name][key]:.2f}" for key, name in columns]
        rows.append([group["group"], f"{group['lines']:,}", *values])
    return rows


def _line_rows(line: dict[str, Any], show: Show, mark: Show) -> list[tuple[str, str]]:
    """Return names and texts: the source, if it is known, the reference, and both systems.

    show and mark: format words that both systems have, and words that only one has.
    """
    *_, first, second = line
    rows = [(key, show(line[key])) for key in ("source", "reference") if line[key]]
    for name, text in zip((first, second), marked(line[first], line[second]), strict=True):
        shown = ""
        for word, differs in text:
            bare = word.rstrip()
            shown += (mark if differs else show)(bare) + word[len(bare) :]
        rows.append((name, shown or show("(empty)")))
    return rows
