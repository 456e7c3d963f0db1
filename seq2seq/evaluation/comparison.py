"""Scores of systems and paired significance tests, by sacreBLEU, and what they say in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest
from sacrebleu.significance import Result as TestResult

from seq2seq.evaluation.line_scores import LineMean
from seq2seq.evaluation.metrics import (
    DEFAULT_KEYS,
    Score,
    make_metric,
    named_score,
    sacrebleu_errors,
    score_by,
)
from seq2seq.evaluation.systems import System, TestSet

RESAMPLES = 1_000
"""Number of bootstrap resamples (sacreBLEU's default)."""
TRIALS = 10_000
"""Number of trials of approximate randomisation (sacreBLEU's default)."""
MAX_TESTED_LINES = 10_000
"""sacreBLEU holds all resamples of one metric in memory: 0.13 MB for each line."""
LEVEL = 0.05
"""p-value below which a difference is called significant."""
MIN_DIFFERENT = 10
"""Fewer lines that differ show nothing, whatever the tests say."""
LOWER_IS_BETTER = ("ter", "metricx")
"""Beginnings of the names of such metrics."""


@dataclass(frozen=True)
class Comparison:
    """The difference of a system from the first one by one metric, and its tests."""

    first: str
    second: str
    metric: str
    difference: float
    """Score of the second system minus the score of the first."""
    lines: int
    different: int
    """Number of lines in which the two differ."""
    p_bootstrap: float | None = None
    """p-value of paired bootstrap resampling (Koehn 2004), or None if no test was run."""
    p_randomization: float | None = None
    """p-value of paired approximate randomisation (Riezler and Maxwell 2005), or None."""

    @property
    def is_significant(self) -> bool:
        """Whether both tests say so, and enough lines differ.

        sacreBLEU counts larger differences only, so that its p is tiny where all are equal.
        """
        values = self.p_bootstrap, self.p_randomization
        enough = self.difference != 0 and self.different >= MIN_DIFFERENT
        return enough and all(p is not None and p < LEVEL for p in values)

    def tree(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "difference": round(self.difference, 4),
            "p_bootstrap": self.p_bootstrap,
            "p_randomization": self.p_randomization,
            "significant": self.is_significant,
            "sentence": self.sentence(),
        }

    def sentence(self) -> str:
        """Return the result in words."""
        lines = f"{self.lines:,} lines"
        if not self.difference:
            return f"{self.metric}: {self.second} and {self.first} have the same score ({lines})"
        size = abs(self.difference)
        shown = f"{size:.2g}" if size < 0.1 else f"{size:.1f}"
        signed = f"{self.second} {'+' if self.difference > 0 else '-'}{shown}"
        if self.p_bootstrap is None or self.p_randomization is None:
            return f"{self.metric}: {signed}, not tested: more than {MAX_TESTED_LINES:,} lines"
        if self.different < MIN_DIFFERENT:
            reason = f"only {self.different} of {lines} differ"
        else:
            reason = (
                f"p = {self.p_bootstrap:.2g} bootstrap, {self.p_randomization:.2g} randomisation, "
                f"{lines}"
            )
        if not self.is_significant:
            return f"no significant difference in {self.metric}: {signed} ({reason})"
        better, worse = self.second, self.first
        if (self.difference < 0) != self.metric.lower().startswith(LOWER_IS_BETTER):
            better, worse = worse, better
        return f"{better} is better than {worse} by {shown} {self.metric} ({reason})"


@dataclass(frozen=True)
class Result:
    """The scores of each system, and its comparisons with the first one, by metric."""

    systems: Sequence[System]
    scores: Sequence[Sequence[Score]]
    comparisons: Sequence[Sequence[Comparison]]
    """The first system has none."""

    def tree(self) -> dict[str, Any]:
        """Return a JSON object: the scores of the first system, and the others' under `against`."""
        trees = []
        for system, scores, comparisons in zip(
            self.systems, self.scores, self.comparisons, strict=True
        ):
            tree: dict[str, Any] = {"system": system.name}
            for score in scores:
                tree[score.key] = round(score.value, 4)
                tree[score.signature_key] = score.signature
                if score.interval is not None:
                    tree[f"{score.key}_interval"] = round(score.interval, 4)
            if system.search:
                tree["search"] = system.search
            if comparisons:
                tree["comparisons"] = {each.metric: each.tree() for each in comparisons}
            trees.append(tree)
        first, *others = trees
        against = {"against": others} if others else {}
        return {**first, "lines": len(self.systems[0].lines), **against}


def compare(
    systems: Sequence[System],
    test_set: TestSet,
    *,
    keys: Sequence[str] | None = None,
    line_scores: Mapping[str, Sequence[Sequence[str]]] | None = None,
) -> Result:
    """Score systems, and test the difference of each from the first.

    keys: metrics (by default `DEFAULT_KEYS`). line_scores: see `read_line_scores`.
    """
    references = [list(lines) for lines in test_set.references]
    scores: list[list[Score]] = [[] for _ in systems]
    comparisons: list[list[Comparison]] = [[] for _ in systems]
    with sacrebleu_errors():
        measured: list[tuple[str, Metric, Sequence[Sequence[str]]]] = []
        for key in dict.fromkeys(keys or DEFAULT_KEYS):
            metric = make_metric(key, tokenize=test_set.tokenize, lowercase=test_set.lowercase)
            measured.append((key, metric, [list(system.lines) for system in systems]))
        for name, numbers in (line_scores or {}).items():
            measured.append((name.lower(), LineMean(name), numbers))
        for key, metric, texts in measured:
            bootstraps, randomizations = _tests(metric, texts, references)
            for i, lines in enumerate(texts):
                bootstrap = bootstraps[i]
                if bootstrap.ci is None or isinstance(metric, BLEU):  # whose score has details
                    score = score_by(metric, key, lines, references)
                else:
                    score = named_score(metric, key, bootstrap.score)
                interval = None if bootstrap.ci is None else float(bootstrap.ci)
                scores[i].append(replace(score, interval=interval))
                if i == 0:
                    continue
                comparisons[i].append(
                    Comparison(
                        first=systems[0].name,
                        second=systems[i].name,
                        metric=score.name,
                        difference=score.value - scores[0][-1].value,
                        lines=len(lines),
                        different=sum(one != two for one, two in zip(texts[0], lines, strict=True)),
                        p_bootstrap=bootstrap.p_value,
                        p_randomization=randomizations[i].p_value,
                    )
                )
    return Result(systems, scores, comparisons)


def _tests(
    metric: Metric, texts: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
) -> list[list[TestResult]]:
    """Return the results of each system by bootstrap and randomisation, compared with the first.

    The results of the bootstrap have confidence intervals. Of one system there is nothing else.
    """
    found: list[Any] = [[TestResult(math.nan)] * len(texts)] * 2
    if len(texts[0]) > MAX_TESTED_LINES:
        return found
    named = [(str(i), lines) for i, lines in enumerate(texts)]
    for i, (kind, count) in enumerate([("bs", RESAMPLES), ("ar", TRIALS)][: len(texts)]):
        _, results = PairedTest(named, {"metric": metric}, references, kind, count)()
        found[i] = next(own for name, own in results.items() if name != "System")
    return found
