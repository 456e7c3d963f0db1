"""The result of `seq2seq score` as text."""

from __future__ import annotations

from collections.abc import Sequence

from seq2seq.evaluation.breakdown import Breakdown, LineDifference, Marked, Table
from seq2seq.evaluation.comparison import LEVEL, Result
from seq2seq.evaluation.metrics import scores_text
from seq2seq.tables import aligned

RULE = f"A system is called better if both happen in less than {LEVEL:.0%} of cases."


def result_text(result: Result) -> str:
    """Return the scores; of several systems, as a table with a sentence for each comparison."""
    if len(result.systems) == 1:
        search = result.systems[0].facts.get("search")
        return scores_text(result.scores[0]) + (f"\nsearch  {search}" if search else "")
    signatures = [f"  {each.name:7}  {each.signature}" for each in result.scores[0]
                  if each.signature]  # fmt: skip
    searches = [f"  {system.name}  {system.facts['search']}" for system in result.systems
                if "search" in system.facts]  # fmt: skip
    rows = result.table()
    sentences = [each.sentence() for each in result.comparisons]
    sentences.append(RULE)
    parts = ["\n".join(lines) for lines in (aligned(rows), sentences, [*signatures, *searches])]
    return "\n\n".join(parts)


def breakdown_text(breakdown: Breakdown, *, on_terminal: bool) -> str:
    """Return tables, and the lines that differ most."""
    names = breakdown.names
    parts = [_table_text(each, names) for each in breakdown.tables]
    for lines in (breakdown.better, breakdown.worse):
        parts += [_line_text(each, names, on_terminal=on_terminal) for each in lines]
    return "\n\n".join(parts)


def _table_text(table: Table, names: Sequence[str]) -> str:
    """Return a table of scores by group, with a column for each metric of each system."""
    metrics = [each.name for each in table.groups[0][2][0]]
    header = [table.title, "lines", *(f"{name} {metric}" for metric in metrics for name in names)]
    rows = [header]
    for group, count, scores in table.groups:
        values = [f"{own[i].value:.2f}" for i in range(len(metrics)) for own in scores]
        rows.append([group, f"{count:,}", *values])
    return "\n".join(aligned(rows))


def _line_text(each: LineDifference, names: Sequence[str], *, on_terminal: bool) -> str:
    """Return a line of two systems, with the words that differ bold, or in brackets."""
    width = max(map(len, ("reference", *names[:2])))
    rows = [
        ("source", each.source),
        ("reference", each.reference),
        (names[0], _marked(each.first, on_terminal=on_terminal)),
        (names[1], _marked(each.second, on_terminal=on_terminal)),
    ]
    lines = [f"  {name:{width}}  {text}" for name, text in rows if name != "source" or text]
    return "\n".join([f"line {each.number}: {names[1]} {each.difference:+.1f} chrF2", *lines])


def _marked(words: Marked, *, on_terminal: bool) -> str:
    before, after = ("\x1b[1m", "\x1b[0m") if on_terminal else ("[", "]")
    parts = []
    for word, differs in words:
        bare = word.rstrip()
        parts.append(f"{before}{bare}{after}{word[len(bare) :]}" if differs else word)
    return "".join(parts) or "(empty)"
