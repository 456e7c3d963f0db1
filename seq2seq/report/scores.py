"""The result of `seq2seq score` as text, and as a self-contained page."""

from __future__ import annotations

from html import escape

from seq2seq.evaluation.breakdown import Breakdown, LineDifference
from seq2seq.evaluation.comparison import LEVEL, Result
from seq2seq.evaluation.metrics import RESAMPLES
from seq2seq.evaluation.systems import shown_fact
from seq2seq.report.page import page, paragraphs, table, text_fields
from seq2seq.tables import aligned

INTERVALS = f"± is half of the 95 % confidence interval, by {RESAMPLES:,} bootstrap resamples."
RULE = (
    f"A system is called better if both tests find that in less than {LEVEL:.0%} of their trials."
)
ABOUT_MODELS = (
    "This is about these models, and not about the settings of their recipes: another seed of the "
    "same recipe differs, too."
)


def result_text(result: Result) -> str:
    """Return the scores; of several systems, as a table with a sentence for each comparison."""
    searches = [f"  {system.name}  {system.facts['search']}" for system in result.systems
                if "search" in system.facts]  # fmt: skip
    if len(result.systems) == 1:
        lines = []
        for each in result.scores[0]:
            value = f"{each.name:7} {each.value:6.2f}{each.margin}  {each.details}".rstrip()
            lines += [value, f"        {each.signature}"]
        if searches:
            lines.append(f"search  {result.systems[0].facts['search']}")
        return "\n".join(lines)
    signatures = [f"  {each.name:7}  {each.signature}" for each in result.scores[0]
                  if each.signature]  # fmt: skip
    sentences = [*(each.sentence() for each in result.comparisons), RULE]
    if searches:  # made by runs
        sentences.append(ABOUT_MODELS)
    parts = (aligned(result.table()), sentences, [*signatures, *searches])
    return "\n\n".join("\n".join(lines) for lines in parts)


def breakdown_text(breakdown: Breakdown, *, on_terminal: bool) -> str:
    """Return tables, and the lines that differ most: differing words bold, or in brackets."""
    before, after = ("\x1b[1m", "\x1b[0m") if on_terminal else ("[", "]")
    parts = [aligned(each.rows(each.title)) for each in breakdown.tables]
    for each in (*breakdown.better, *breakdown.worse):
        rows = each.rows(lambda text, differs: f"{before}{text}{after}" if differs else text)
        width = max(len(name) for name, _ in rows)
        head = f"line {each.number}: {rows[-1][0]} {each.difference:+.1f} chrF2"
        parts.append([head, *(f"  {name:{width}}  {text}" for name, text in rows)])
    return "\n\n".join("\n".join(lines) for lines in parts)


def comparison_page(result: Result, breakdown: Breakdown) -> str:
    """Return a page: scores, what they mean, where the systems differ."""
    names = [system.name for system in result.systems]
    body = [
        table(result.table()),
        paragraphs([INTERVALS] if result.has_intervals else [], "note"),
        paragraphs([each.sentence() for each in result.comparisons]),
        paragraphs([RULE] if result.comparisons else [], "note"),
        paragraphs([f"Note: {note}" for note in result.notes]),
    ]
    facts = [[f"{system.name}: {key}", shown_fact(value)]
             for system in result.systems for key, value in system.facts.items()]  # fmt: skip
    signatures = [[each.name, each.signature] for each in result.scores[0] if each.signature]
    for each in breakdown.tables:
        body.append(f"<h2>By {escape(each.title)}</h2>{table(each.rows())}")
    if breakdown.better or breakdown.worse:
        body.append("<h2>Lines that differ most</h2>")
        body.append(paragraphs(["By chrF2 of the line. Words that only one of the two has are "
                                "marked."], "note"))  # fmt: skip
        for name, lines in ((names[1], breakdown.better), (names[0], breakdown.worse)):
            if lines:
                body.append(f"<h3>Where {escape(name)} is better</h3>")
            body += [_line(each) for each in lines]
    body.append("<h2>How this was measured</h2>")
    body.append(table([["", ""], *signatures, *facts], kind="text"))
    title = " and ".join(names) if len(names) < 3 else f"{len(names)} systems"
    return page(f"Comparison of {title}" if len(names) > 1 else f"Scores of {title}", body)


def _line(each: LineDifference) -> str:
    caption = f"line {each.number}: {each.difference:+.1f} chrF2"
    return text_fields(each.rows(_shown), caption)


def _shown(text: str, differs: bool) -> str:
    return f"<mark>{escape(text)}</mark>" if differs else escape(text)
