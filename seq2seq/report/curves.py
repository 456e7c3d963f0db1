"""Curves of what runs have measured, over minutes or updates, side by side in one plot."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seq2seq.errors import UserError

AXES = {"minutes": "minutes", "updates": "step"}
"""What a curve may go over, and its key in metrics.jsonl."""
MAIN_METRICS = ("bleu", "bits_per_character", "accuracy")
LESS_IS_BETTER = {
    "loss", "nll", "perplexity", "ter", "bits_per_character", "bits_per_byte"
}  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """One metric of one run."""

    name: str
    places: list[float]
    """Minutes or updates, ascending."""
    values: list[float]
    falls: bool = False
    """Whether less is better."""

    def reaches(self, goal: float) -> float | None:
        """Return the first place where the value is as good as `goal`; None if there is none."""
        for at, value in zip(self.places, self.values, strict=True):
            if value <= goal if self.falls else value >= goal:
                return at
        return None


def main_metric(run: Path) -> str:
    """Return the metric that the run's validations are about: BLEU, bits or accuracy, else nll."""
    path, measured = run / "metrics.jsonl", ""
    if path.is_file():
        measured = path.read_text(encoding="utf-8", errors="replace")
    names = (name for name in MAIN_METRICS if f'"{name}": ' in measured)
    return f"validation/{next(names, 'nll')}"


def read_curves(runs: Sequence[Path], metric: str, over: str) -> list[Curve]:
    """Read a curve of each run, as `read_curve` does; where names are the same, paths are used."""
    curves = [read_curve(run, metric, over) for run in runs]
    names = [curve.name for curve in curves]
    return [
        replace(curve, name=str(run)) if names.count(curve.name) > 1 else curve
        for curve, run in zip(curves, runs, strict=True)
    ]


def read_curve(run: Path, metric: str, over: str) -> Curve:
    """Read KIND/NAME, as TensorBoard shows it (validation/bleu, train/loss), from a run's metrics.

    Raises UserError where the run has measured nothing, or no such thing.
    """
    path = run / "metrics.jsonl"
    if not path.is_file():
        raise UserError(f"{path} does not exist: {run} is no run directory, or has not begun")
    kind, _, name = metric.partition("/")
    points, known = [], set()
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        if not line.endswith("\n"):
            break  # it is being written, or a crash has cut it short
        try:
            record = json.loads(line)
            known |= {f"{record['kind']}/{key}" for key in record.keys() - {"kind", "step"}}
            if record["kind"] == kind and name in record:
                points.append((float(record[AXES[over]]), float(record[name])))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(
                f"{path}: line {number} is no record of this metric: {line[:80]}"
            ) from None
    if not points:
        raise UserError(f"{run} has no {metric}; it has {', '.join(sorted(known)) or 'nothing'}")
    places, values = [at for at, _ in points], [value for _, value in points]
    return Curve(run.name, places, values, falls=name in LESS_IS_BETTER)


def require_plots(path: Path) -> None:
    """Raise UserError unless plots can be drawn, in the format that `path` ends with."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("plots need the package: pip install matplotlib")
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:] not in known:
        raise UserError(f"{path}: name a file that ends with one of .{', .'.join(sorted(known))}")


def plot_curves(
    curves: Sequence[Curve], path: Path, metric: str, over: str, goals: Sequence[float] = ()
) -> None:
    """Draw the curves into a file, with a line across at every goal."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for curve in curves:
        marker = "o" if len(curve.places) < 50 else None
        axes.plot(curve.places, curve.values, marker=marker, markersize=3, label=curve.name)
    for goal in goals:
        axes.axhline(goal, color="gray", linewidth=0.8, linestyle=":")
    axes.set_xlabel(over)
    axes.set_ylabel(metric)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)


def reached_text(curves: Sequence[Curve], goals: Sequence[float], over: str) -> str:
    """Return a table in Markdown: where each curve first reaches each goal."""
    rows = [["", *(f"{over} to {goal:g}" for goal in goals)], ["---"] * (len(goals) + 1)]
    for curve in curves:
        places = [curve.reaches(goal) for goal in goals]
        rows.append([curve.name, *("never" if at is None else f"{at:.4g}" for at in places)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
