"""Segment-level scores by other programs, such as COMET or MetricX."""

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
    """Mean of segment-level scores, as a sacreBLEU metric. Its hypotheses are numbers as text."""

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
    metrics: Sequence[Sequence[str]], systems: Sequence[System]
) -> dict[str, list[list[str]]]:
    """Return the scores of all lines of all systems, as text, by metric name.

    metrics: name of each metric, followed by a file for each system with one number per line.
    """
    scores = {}
    for name, *files in metrics:
        if name.lower() in NAMES:
            raise UserError(f"--line-scores {name} is a sacreBLEU metric: use another name")
        if len(files) != len(systems):
            raise UserError(
                f"--line-scores {name} needs one file per system: {len(systems)} files, not "
                f"{len(files)}"
            )
        scores[name] = [read_file(Path(file)) for file in files]
        for file, numbers, system in zip(files, scores[name], systems, strict=True):
            try:
                count = len(list(map(float, numbers)))
            except ValueError:
                count = 0
            if count != len(system.lines):
                raise UserError(
                    f"{file} must have one number per line, {len(system.lines):,} in all, as "
                    f"{system.name} has"
                )
    return scores
