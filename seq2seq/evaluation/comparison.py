"""Paired significance tests of systems, by sacreBLEU's own code, and what they say in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sacrebleu.metrics.base import Score as MetricScore
from sacrebleu.metrics.base import Signature
from sacrebleu.significance import PairedTest

from seq2seq.errors import UserError
from seq2seq.evaluation.metrics import (
    ALL_KEYS,
    MAX_RESAMPLED_LINES,
    RESAMPLES,
    Score,
    make_metric,
    metric_keys,
    sacrebleu_errors,
    score_by,
    scores_tree,
)
from seq2seq.evaluation.systems import System, TestSet, differences

TRIALS = 10_000
"""Of approximate randomisation, as sacreBLEU's default."""
LEVEL = 0.05
"""A difference that arises by chance less often is called significant."""
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
    """Score of the second less that of the first."""
    lines: int
    different: int
    """Number of lines in which the two differ."""
    p_bootstrap: float | None
    """Of paired bootstrap resampling (Koehn 2004); None without tests."""
    p_randomization: float | None
    """Of paired approximate randomisation (Riezler and Maxwell 2005)."""

    @property
    def is_significant(self) -> bool:
        """Whether both tests say so, and enough lines differ.

        sacreBLEU counts larger differences only, so that its p is tiny where all are equal.
        """
        values = self.p_bootstrap, self.p_randomization
        enough = self.difference != 0 and self.different >= MIN_DIFFERENT
        return enough and all(p is not None and p < LEVEL for p in values)

    def sentence(self) -> str:
        """Return the result in words."""
        lower = self.metric.lower().startswith(LOWER_IS_BETTER)
        better, worse = self.second, self.first
        if (self.difference < 0) != lower:
            better, worse = worse, better
        size = f"{abs(self.difference):.2g}" if abs(self.difference) < 0.1 else (
            f"{abs(self.difference):.1f}")  # fmt: skip
        lines = f"{self.lines:,} line{'s' if self.lines != 1 else ''}"
        if not self.difference:
            return f"{self.metric}: {better} and {worse} have the same score ({lines})"
        if self.p_bootstrap is None or self.p_randomization is None:
            return (
                f"{self.metric}: {better} is ahead of {worse} by {size}; nothing was tested, since "
                f"{lines} are more than {MAX_RESAMPLED_LINES:,}"
            )
        unsure = (
            f"{self.metric}: which is better cannot be said; {better} is ahead of {worse} by {size}"
        )
        if self.different < MIN_DIFFERENT:
            return f"{unsure}, but only {self.different} of {lines} differ"
        chance = (
            f"a larger difference arises by chance in {_count(self.p_bootstrap, RESAMPLES)} "
            f"resamples and {_count(self.p_randomization, TRIALS)} random exchanges of lines "
            f"({lines})"
        )
        if self.is_significant:
            return f"{better} is better than {worse} by {size} {self.metric}; {chance}"
        return f"{unsure}, but {chance}"


def _count(p: float, trials: int) -> str:
    """Return how many trials of how many: sacreBLEU's p is (count + 1) / (trials + 1)."""
    count = round(p * (trials + 1)) - 1
    return f"{count:,} of {trials:,}" if count else f"none of {trials:,}"


@dataclass(frozen=True)
class Result:
    """The scores of all systems, and the comparisons of each with the first."""

    systems: Sequence[System]
    scores: Sequence[Sequence[Score]]
    """Of each system, in one order of metrics."""
    comparisons: Sequence[Comparison]
    notes: Sequence[str] = ()
    """In what runs differ besides their settings."""

    def tree(self) -> dict[str, Any]:
        """Return a JSON object: the scores of the first system, and the others' under `against`."""
        trees = [
            {"system": system.name, **scores_tree(scores), **system.facts}
            for system, scores in zip(self.systems, self.scores, strict=True)
        ]
        for tree in trees[1:]:
            tree["comparisons"] = {
                each.metric: {
                    "difference": round(each.difference, 4),
                    "p_bootstrap": each.p_bootstrap,
                    "p_randomization": each.p_randomization,
                    "significant": each.is_significant,
                    "sentence": each.sentence(),
                }
                for each in self.comparisons
                if each.second == tree["system"]
            }
        optional = {"against": trees[1:], "notes": list(self.notes)}
        lines = len(self.systems[0].lines)
        return {**trees[0], "lines": lines, **{key: x for key, x in optional.items() if x}}

    @property
    def has_intervals(self) -> bool:
        """Whether there are confidence intervals."""
        return self.scores[0][0].interval is not None

    def table(self) -> list[list[str]]:
        """Return rows of cells: a header, and the scores of each system."""
        rows = [["", *(each.name for each in self.scores[0])]]
        for system, scores in zip(self.systems, self.scores, strict=True):
            rows.append([system.name, *(f"{each.value:.2f}{each.margin}" for each in scores)])
        return rows


class LineMean:
    """The mean of numbers that another program gave to each line.

    It has the methods of a sacreBLEU metric that tests call; its hypotheses are the numbers.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def get_signature(self) -> Signature:
        return Signature({"num_refs": 0})

    def _extract_corpus_statistics(self, numbers: Any, references: Any) -> list[list[float]]:
        return [[number, 1.0] for number in numbers]

    def _compute_score_from_stats(self, stats: Sequence[float]) -> MetricScore:
        return MetricScore(self.name, float(stats[0]) / float(stats[1]))

    def _aggregate_and_compute(self, stats: list[list[float]]) -> MetricScore:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])


def compare(
    systems: Sequence[System],
    test_set: TestSet,
    *,
    keys: Sequence[str] | None = None,
    line_scores: Mapping[str, Sequence[Sequence[float]]] | None = None,
) -> Result:
    """Score systems, and test the difference of each from the first.

    keys: of the metrics; by default all that sacreBLEU has here (`metric_keys`). line_scores: names
    of other metrics, with the numbers of each line, of each system.
    """
    line_scores = line_scores or {}
    if same := {name.lower() for name in line_scores} & {*ALL_KEYS}:
        raise UserError(f"--line-scores {same.pop()} is a metric of sacreBLEU: use another name")
    scores: list[list[Score]] = [[] for _ in systems]
    comparisons: list[Comparison] = []

    def add(metric: Any, key: str, lines: Sequence[Sequence[Any]]) -> None:
        for own, hypotheses in zip(scores, lines, strict=True):
            own.append(score_by(metric, key, hypotheses, references, intervals=True))
        values = [own[-1] for own in scores]
        comparisons.extend(_tested(metric, systems, lines, references, values))

    texts = [list(system.lines) for system in systems]
    references = list(map(list, test_set.references))
    with sacrebleu_errors():
        for key in dict.fromkeys(keys or metric_keys()):
            metric = make_metric(key, tokenize=test_set.tokenize, lowercase=test_set.lowercase)
            _remember_statistics(metric)
            add(metric, key, texts)
    for name, columns in line_scores.items():
        add(LineMean(name), name.lower(), columns)
    order = [system.name for system in systems]
    comparisons.sort(key=lambda each: order.index(each.second))
    return Result(systems, scores, comparisons, differences(systems))


def _remember_statistics(metric: Any) -> None:
    """Let a metric compute the statistics of the same lists once: those of TER take seconds."""
    extract, known = metric._extract_corpus_statistics, {}

    def remembered(hypotheses: Sequence[str], references: Any) -> Any:
        key = id(hypotheses), id(references)
        if key not in known:
            known[key] = hypotheses, references, extract(hypotheses, references)
        return known[key][2]

    metric._extract_corpus_statistics = remembered


def _tested(
    metric: Any,
    systems: Sequence[System],
    texts: Sequence[Sequence[Any]],
    references: list[list[str]],
    scores: Sequence[Score],
) -> list[Comparison]:
    """Return the comparisons of all systems with the first by one metric."""
    named = [(system.name, lines) for system, lines in zip(systems, texts, strict=True)]
    p_values: dict[str, list[Any]] = {kind: [None] * len(systems) for kind in ("bs", "ar")}
    if len(systems) > 1 and len(texts[0]) <= MAX_RESAMPLED_LINES:
        for kind in p_values:
            _, found = PairedTest(named, {"metric": metric}, references, test_type=kind)()
            results: list[Any] = next(own for key, own in found.items() if key != "System")
            p_values[kind] = [result.p_value for result in results]
    return [
        Comparison(
            systems[0].name,
            systems[i].name,
            scores[i].name,
            scores[i].value - scores[0].value,
            len(texts[0]),
            sum(one != two for one, two in zip(texts[0], texts[i], strict=True)),
            p_values["bs"][i],
            p_values["ar"][i],
        )
        for i in range(1, len(systems))
    ]
