"""`seq2seq score`: scores of systems, paired significance tests, and the lines that differ most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import chain, zip_longest
from statistics import fmean
from typing import Any

import numpy as np
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest

from seq2seq.evaluation.metrics import (
    COMPARISON_METRICS,
    NAMES,
    VALIDATION_METRICS,
    LineMean,
    Score,
    sacrebleu_errors,
    score_by,
)
from seq2seq.evaluation.systems import System, TestSet
from seq2seq.terminal import aligned
from seq2seq.text.language import words

MAX_TESTED_LINES = 10_000
"""Maximum number of lines for tests. sacreBLEU's resamples take 0.13 MB of memory per line."""
LEVEL = 0.05
"""p-value below which a difference is called significant."""
MIN_DIFFERENT = 10
"""Minimum number of differing lines for a significant difference."""
LOWER_IS_BETTER = ("ter", "metricx")
"""Prefixes of the lower-case names of metrics where a lower score is better."""
LENGTHS = (1, 6, 11, 21, 41)
"""Lower bound of each length group, in words of the reference."""
RULE = (
    f"Significant: p < {LEVEL} in both tests (paired bootstrap resampling and approximate "
    f"randomisation), and at least {MIN_DIFFERENT} lines differ."
)
ABOUT_MODELS = (
    "The tests compare these models, not their recipes: another seed of the same recipe gives "
    "another model."
)


@dataclass(frozen=True)
class Comparison:
    """Difference between a system and the first system in one metric, with significance tests."""

    first: str
    second: str
    metric: str
    difference: float
    """Score of the second system minus the score of the first."""
    lines: int
    different: int
    """Number of lines in which the two systems differ."""
    p_values: tuple[float, float] | None = None
    """p-values of paired bootstrap resampling (Koehn 2004) and paired approximate randomisation
    (Riezler and Maxwell 2005), or None if no test was run."""

    @property
    def is_significant(self) -> bool:
        """Whether the scores differ, both p-values are below `LEVEL`, and enough lines differ.

        sacreBLEU's p-values are too small if few lines differ: it does not count ties.
        """
        enough = self.difference != 0 and self.different >= MIN_DIFFERENT
        return enough and self.p_values is not None and max(self.p_values) < LEVEL

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        p_bootstrap, p_randomization = self.p_values or (None, None)
        return {
            "difference": round(self.difference, 4),
            "p_bootstrap": p_bootstrap,
            "p_randomization": p_randomization,
            "significant": self.is_significant,
            "sentence": self.sentence(),
        }

    def sentence(self) -> str:
        """Return one sentence with the result, such as `B is better than A by 0.8 BLEU (...)`."""
        lines = f"{self.lines:,} lines"
        if not self.difference:
            return f"{self.metric}: {self.second} and {self.first} have the same score ({lines})"
        size = abs(self.difference)
        amount = f"{size:.2g}" if size < 0.1 else f"{size:.1f}"
        change = f"{self.second} {'+' if self.difference > 0 else '-'}{amount}"
        is_lower_better = self.metric.lower().startswith(LOWER_IS_BETTER)
        note = "lower is better; " if is_lower_better else ""
        if self.p_values is None:
            note += f"not tested: more than {MAX_TESTED_LINES:,} lines"
            return f"{self.metric}: {change} ({note})"
        if self.different < MIN_DIFFERENT:
            note += f"only {self.different} of {lines} differ"
        else:
            note += "p = {:.2g} bootstrap, {:.2g} randomisation, ".format(*self.p_values) + lines
        if not self.is_significant:
            return f"no significant difference in {self.metric}: {change} ({note})"
        better, worse = self.second, self.first
        if (self.difference < 0) != is_lower_better:
            better, worse = worse, better
        return f"{better} is better than {worse} by {amount} {self.metric} ({note})"


@dataclass(frozen=True)
class Result:
    """Scores of all systems, and the comparisons of each system with the first."""

    systems: Sequence[System]
    scores: Sequence[Sequence[Score]]
    comparisons: Sequence[Sequence[Comparison]]
    """Comparisons by system and metric; empty for the first system."""

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object: scores of the first system, with the other systems in `against`."""
        trees = []
        for system, scores, comparisons in zip(
            self.systems, self.scores, self.comparisons, strict=True
        ):
            tree: dict[str, Any] = {"system": system.name}
            for result in scores:
                tree[result.key] = round(result.value, 4)
                tree[result.signature_key] = result.signature
                if result.margin is not None:
                    tree[f"{result.key}_interval"] = round(result.margin, 4)
            if system.search:
                tree["search"] = system.search
            if comparisons:
                tree["comparisons"] = {x.metric: x.to_dict() for x in comparisons}
            trees.append(tree)
        first, *others = trees
        against = {"against": others} if others else {}
        return {**first, "lines": len(self.systems[0].lines), **against}

    def text(self) -> str:
        """Return a table of scores, a sentence per comparison, signatures and search settings."""
        rows = [["", *(score.name for score in self.scores[0])]]
        for i, result in enumerate(self.scores[0], start=1):
            if result.key.startswith(LOWER_IS_BETTER):
                rows[0][i] += " (lower is better)"
        notes = {score.name: score.signature for score in self.scores[0] if score.signature}
        for system, scores in zip(self.systems, self.scores, strict=True):
            rows.append([system.name, *(score.text for score in scores)])
            details = [*(score.details for score in scores), system.search]
            notes[system.name] = "  ".join(filter(None, details))
        sentences = [comparison.sentence() for comparison in chain(*self.comparisons)]
        if sentences:
            sentences.append(RULE)
            if any(system.search for system in self.systems):  # a run, not a file
                sentences.append(ABOUT_MODELS)
        footnotes = [f"  {name:7}  {text}" for name, text in notes.items() if text]
        parts = [part for part in (aligned(rows), sentences, footnotes) if part]
        return "\n\n".join("\n".join(lines) for lines in parts)


def results_of_directions(results: Mapping[str, Result]) -> tuple[dict[str, Any], str]:
    """Return the results of several directions as a JSON object and as text, with their means."""
    first = next(iter(results.values()))
    means: dict[str, dict[str, float]] = {}
    for number, system in enumerate(first.systems):
        columns = zip(*(result.scores[number] for result in results.values()), strict=True)
        means[system.name] = {x[0].key: round(fmean(y.value for y in x), 4) for x in columns}
    rows = [["mean", *(score.name for score in first.scores[0])]]
    rows += [[name, *(f"{x:.2f}" for x in values.values())] for name, values in means.items()]
    texts = [f"{direction}\n{result.text()}" for direction, result in results.items()]
    tree = {"mean": means, "directions": {name: x.to_dict() for name, x in results.items()}}
    return tree, "\n\n".join([*texts, "\n".join(aligned(rows))])


@sacrebleu_errors()
def compare(
    systems: Sequence[System],
    test_set: TestSet,
    *,
    keys: Sequence[str] | None = None,
    line_scores: Mapping[str, Sequence[Sequence[str]]] | None = None,
) -> Result:
    """Score systems, and compare each system with the first.

    keys: metrics (by default `COMPARISON_METRICS`). line_scores: from `read_line_scores`.
    """
    references, outputs = test_set.references, [system.lines for system in systems]
    scores: list[list[Score]] = [[] for _ in systems]
    comparisons: list[list[Comparison]] = [[] for _ in systems]
    measured: list[tuple[str, Metric, Sequence[Sequence[str]]]] = []
    for key in dict.fromkeys(keys or COMPARISON_METRICS):
        measured.append((key, test_set.metric(key), outputs))
    for name, numbers in (line_scores or {}).items():
        measured.append((name.lower(), LineMean(name), numbers))
    for key, metric, texts in measured:
        tests = _tests(metric, texts, references)
        for i, (lines, (margin, p_values)) in enumerate(zip(texts, tests, strict=True)):
            score = score_by(metric, key, lines, references, margin)
            scores[i].append(score)
            if i > 0:
                comparison = Comparison(
                    first=systems[0].name,
                    second=systems[i].name,
                    metric=score.name,
                    difference=score.value - scores[0][-1].value,
                    lines=len(lines),
                    different=sum(a != b for a, b in zip(texts[0], lines, strict=True)),
                    p_values=p_values,
                )
                comparisons[i].append(comparison)
    return Result(systems, scores, comparisons)


def _tests(
    metric: Metric, texts: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
) -> list[tuple[float | None, tuple[float, float] | None]]:
    """Return the half-width of the confidence interval and the p-values of each system.

    The first system has no p-values. Above `MAX_TESTED_LINES` everything is None.
    """
    if len(texts[0]) > MAX_TESTED_LINES:
        return [(None, None)] * len(texts)
    named = [(str(i), lines) for i, lines in enumerate(texts)]
    tests: list[list[Any]] = []
    for kind in ("bs", "ar")[: len(texts)]:  # a single system has no p-values
        _, results = PairedTest(named, {"metric": metric}, references, kind)()
        tests.append([*results.values()][-1])  # after the names of the systems
    return [
        (float(bs.ci), None if bs.p_value is None else (bs.p_value, ar.p_value))
        for bs, ar in zip(tests[0], tests[-1], strict=True)
    ]


@sacrebleu_errors()
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
    metric = test_set.metric("chrf")
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
    result = ""
    for kind, start, end, _, _ in matcher.get_opcodes():
        for word, bare in zip(words(text)[start:end], bare_words[start:end], strict=True):
            result += word if kind == "equal" else f"{before}{bare}{after}{word[len(bare) :]}"
    return result


def by_length(systems: Sequence[System], test_set: TestSet) -> list[dict[str, Any]]:
    """Return name, number of lines, and scores by system name, of each length group.

    The length is the number of words of the first reference.
    """
    lens = [len(words(text)) for text in test_set.references[0]]
    group_ids = np.digitize(lens, LENGTHS[1:])  # an empty reference belongs to the first group
    metrics = {key: test_set.metric(key) for key in VALIDATION_METRICS}
    groups = []
    for group_id, (start, end) in enumerate(zip_longest(LENGTHS, LENGTHS[1:])):
        chosen = np.flatnonzero(group_ids == group_id).tolist()
        if not chosen:
            continue
        name = f"{start} or more" if end is None else f"{start}-{end - 1}"
        group: dict[str, Any] = {"group": name, "lines": len(chosen)}
        references = [[texts[i] for i in chosen] for texts in test_set.references]
        for system in systems:
            lines = [system.lines[i] for i in chosen]
            group[system.name] = {
                key: round(metric.corpus_score(lines, references).score, 4)
                for key, metric in metrics.items()
            }
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
