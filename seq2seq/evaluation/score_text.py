"""The result of `seq2seq score` as text."""

from __future__ import annotations

from seq2seq.evaluation.breakdown import Breakdown
from seq2seq.evaluation.comparison import LEVEL, Result
from seq2seq.evaluation.metrics import scores_text
from seq2seq.tables import aligned

RULE = (
    f"A system is called better if both tests find that in less than {LEVEL:.0%} of their trials."
)
ABOUT_MODELS = (
    "This is about these models, and not about the settings of their recipes: another seed of the "
    "same recipe differs, too."
)


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
    if searches:  # made by runs
        sentences.append(ABOUT_MODELS)
    parts = ["\n".join(lines) for lines in (aligned(rows), sentences, [*signatures, *searches])]
    return "\n\n".join(parts)


def breakdown_text(breakdown: Breakdown, *, on_terminal: bool) -> str:
    """Return tables, and the lines that differ most: differing words bold, or in brackets."""
    names = breakdown.names
    before, after = ("\x1b[1m", "\x1b[0m") if on_terminal else ("[", "]")
    parts = ["\n".join(aligned(each.rows(names, each.title))) for each in breakdown.tables]
    for each in (*breakdown.better, *breakdown.worse):
        rows = each.rows(names, lambda text, differs: f"{before}{text}{after}" if differs else text)
        width = max(map(len, ("reference", *names[:2])))
        lines = [f"  {name:{width}}  {text}" for name, text in rows]
        head = f"line {each.number}: {names[1]} {each.difference:+.1f} chrF2"
        parts.append("\n".join([head, *lines]))
    return "\n\n".join(parts)
