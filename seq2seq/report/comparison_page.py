"""The result of `seq2seq score` as a self-contained page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from seq2seq.evaluation.breakdown import Breakdown, LineDifference
from seq2seq.evaluation.comparison import Result
from seq2seq.evaluation.metrics import RESAMPLES
from seq2seq.evaluation.score_text import RULE
from seq2seq.report.page import page, paragraphs, table

INTERVALS = f"± is half of the 95 % confidence interval, by {RESAMPLES:,} bootstrap resamples."


def comparison_page(result: Result, breakdown: Breakdown) -> str:
    """Return a page: scores, what they mean, where the systems differ."""
    names = [system.name for system in result.systems]
    body = [
        table(result.table()),
        paragraphs([INTERVALS] if result.has_intervals else [], "note"),
        paragraphs([each.sentence() for each in result.comparisons]),
        paragraphs([RULE] if result.comparisons else [], "note"),
    ]  # fmt: skip
    body += [paragraphs([f"Note: {note}" for note in result.notes])] if result.notes else []
    facts = [[f"{system.name}: {key}", f"{value:,}" if isinstance(value, int) else str(value)]
             for system in result.systems for key, value in system.facts.items()]  # fmt: skip
    signatures = [[each.name, each.signature] for each in result.scores[0] if each.signature]
    for each in breakdown.tables:
        body.append(f"<h2>By {escape(each.title)}</h2>{table(each.rows(names))}")
    if breakdown.better or breakdown.worse:
        best, other = names[1], names[0]
        body.append("<h2>Lines that differ most</h2>")
        body.append(paragraphs(["By chrF2 of the line. Words that only one of the two has are "
                                "marked."], "note"))  # fmt: skip
        for name, lines in ((best, breakdown.better), (other, breakdown.worse)):
            if lines:
                body.append(f"<h3>Where {escape(name)} is better</h3>")
            body += [_line(each, names) for each in lines]
    body.append("<h2>How this was measured</h2>")
    body.append(table([["", ""], *signatures, *facts], kind="text"))
    title = " and ".join(names) if len(names) < 3 else f"{len(names)} systems"
    return page(f"Comparison of {title}" if len(names) > 1 else f"Scores of {title}", body)


def _line(each: LineDifference, names: Sequence[str]) -> str:
    rows = each.rows(names, _shown)
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{text}</td></tr>" for name, text in rows)
    return (
        f'<div class="scroll"><table class="text"><caption class="dim">line {each.number}: '
        f"{each.difference:+.1f} chrF2</caption>{cells}</table></div>"
    )


def _shown(text: str, differs: bool) -> str:
    return f"<mark>{escape(text)}</mark>" if differs else escape(text)
