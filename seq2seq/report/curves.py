"""Plot the metrics of runs over minutes or updates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seq2seq.errors import UserError
from seq2seq.extras import require_extra
from seq2seq.folders import written_file

AXES = {"minutes": "minutes", "updates": "step"}
"""Possible x axes, with their keys in metrics.jsonl."""
MAIN_METRICS = ("bleu", "bits_per_character", "accuracy")
LOWER_IS_BETTER = {
    "loss", "nll", "perplexity", "ter", "bits_per_character", "bits_per_byte"
}  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """One metric of one run."""

    name: str
    xs: list[float]
    """Minutes or updates, ascending."""
    values: list[float]
    lower_is_better: bool = False

    def reaches(self, goal: float) -> float | None:
        """Return the first x at which the value reaches `goal`; None if there is none."""
        for x, value in zip(self.xs, self.values, strict=True):
            if value <= goal if self.lower_is_better else value >= goal:
                return x
        return None


def main_metric(run: Path) -> str:
    """Return the main metric of a run's validations: BLEU, bits per character, accuracy or nll."""
    path, measured = run / "metrics.jsonl", ""
    if path.is_file():
        measured = path.read_text(encoding="utf-8", errors="replace")
    names = (name for name in MAIN_METRICS if f'"{name}": ' in measured)
    return f"validation/{next(names, 'nll')}"


def read_curves(runs: Sequence[Path], metric: str, over: str) -> list[Curve]:
    """Read a curve of each run; runs of the same name are labelled by their paths."""
    curves = [read_curve(run, metric, over) for run in runs]
    names = [curve.name for curve in curves]
    return [
        replace(curve, name=str(run)) if names.count(curve.name) > 1 else curve
        for curve, run in zip(curves, runs, strict=True)
    ]


def read_curve(run: Path, metric: str, over: str) -> Curve:
    """Read a metric, such as validation/bleu or train/loss, from a run's metrics.jsonl.

    Raises UserError if the run has no such metric.
    """
    path = run / "metrics.jsonl"
    if not path.is_file():
        raise UserError(f"{path} does not exist: {run} is not a run directory, or has not started")
    kind, _, name = metric.partition("/")
    points, known = [], set()
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            break  # being written, or truncated by a crash
        try:
            record = json.loads(line)
            known |= {f"{record['kind']}/{key}" for key in record.keys() - {"kind", "step"}}
            if record["kind"] == kind and name in record:
                points.append((float(record[AXES[over]]), float(record[name])))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise UserError(
                f"{path}: line {number} is not a valid record: {line[:80]!r}; delete it"
            ) from None
    if not points:
        raise UserError(f"{run} has no {metric}; it has {', '.join(sorted(known)) or 'nothing'}")
    xs, values = [x for x, _ in points], [value for _, value in points]
    return Curve(run.name, xs, values, lower_is_better=name in LOWER_IS_BETTER)


def require_plots(path: Path) -> None:
    """Raise UserError unless matplotlib is installed and supports the format of `path`."""
    require_extra("matplotlib", "a plot")
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:] not in known:
        raise UserError(f"{path}: use a name that ends with one of .{', .'.join(sorted(known))}")


def plot_curves(
    curves: Sequence[Curve], path: Path, metric: str, over: str, goals: Sequence[float] = ()
) -> None:
    """Plot the curves to a file, with a horizontal line at every goal."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for curve in curves:
        marker = "o" if len(curve.xs) < 50 else None
        axes.plot(curve.xs, curve.values, marker=marker, markersize=3, label=curve.name)
    for goal in goals:
        axes.axhline(goal, color="gray", linewidth=0.8, linestyle=":")
    axes.set_xlabel(over)
    axes.set_ylabel(metric)
    axes.grid(alpha=0.3)
    axes.legend()
    with written_file(path.resolve()) as stream:
        figure.savefig(stream, format=path.suffix[1:])


def reached_text(curves: Sequence[Curve], goals: Sequence[float], over: str) -> str:
    """Return a Markdown table of where each curve first reaches each goal."""
    rows = [["", *(f"{over} to {goal:g}" for goal in goals)], ["---"] * (len(goals) + 1)]
    for curve in curves:
        xs = [curve.reaches(goal) for goal in goals]
        rows.append([curve.name, *("never" if x is None else f"{x:.4g}" for x in xs)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
