"""Numbers that another program, such as COMET or MetricX, gave to each line of each system."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sacrebleu.metrics.base import Metric, Score

from seq2seq.data.lines import read_file
from seq2seq.errors import UserError
from seq2seq.evaluation.metrics import NAMES
from seq2seq.evaluation.systems import System


class LineMean(Metric):
    """The mean of such numbers, as a metric for sacreBLEU: its hypotheses are numbers as text."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def _preprocess_segment(self, sent: str) -> str:
        return sent

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: Any) -> list[float]:
        return [float(hypothesis), 1.0]

    def _compute_score_from_stats(self, stats: Sequence[float]) -> Score:
        return Score(self.name, float(stats[0]) / float(stats[1]))

    def _aggregate_and_compute(self, stats: Sequence[Sequence[float]]) -> Score:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])


def read_line_scores(
    given: Sequence[Sequence[str]], systems: Sequence[System]
) -> dict[str, list[list[str]]]:
    """Return the numbers of each line, as text, of each system, by the names of metrics.

    given: the name of each metric and a file for each system, with a number on each line.
    """
    found = {}
    for name, *files in given:
        if name.lower() in NAMES:
            raise UserError(f"--line-scores {name} is a metric of sacreBLEU: use another name")
        if len(files) != len(systems):
            raise UserError(
                f"--line-scores {name} needs {len(systems)} files, one for each system, not "
                f"{len(files)}"
            )
        found[name] = [read_file(Path(file)) for file in files]
        for file, numbers, system in zip(files, found[name], systems, strict=True):
            try:
                count = len(list(map(float, numbers)))
            except ValueError:
                count = 0
            if count != len(system.lines):
                raise UserError(
                    f"{file} must have a number for each of the {len(system.lines)} lines of "
                    f"{system.name}, and nothing else"
                )
    return found
