"""Compare the loss curves of bf16 training with those of plain fp32 training.

Usage: python scripts/loss_curves.py RECIPE [section.key=value ...] [--updates N] [--seeds N]
       [--run DIR] [-o FILE]

Trains the recipe with every seed in both precisions (a cosine ends with the last update), and
compares the training loss at each log step with the range that fp32 covers. Runs that are there
already are resumed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import vl_convert

from seq2seq.errors import UserError
from seq2seq.report.charts import CONFIG, line_chart
from seq2seq.report.runs import read_run


@dataclass(frozen=True)
class Curve:
    """The training loss of a run."""

    name: str
    xs: list[float]
    """Updates."""
    values: list[float]


def train(options: argparse.Namespace, precision: str, seed: int) -> Curve:
    """Train one run, and return its loss over the updates."""
    run = options.run / f"{precision}_seed{seed}"
    command = [
        sys.executable, "-m", "seq2seq", "train", str(options.recipe), "--run", str(run),
        *options.overrides, f"training.precision={precision}", f"training.seed={seed}",
        f"training.max_steps={options.updates}", "training.max_minutes=null",
        "training.validate_every_epochs=null", f"training.validate_every={options.updates}",
        "training.log_every=10", "training.best_by=nll",
    ]  # fmt: skip
    if subprocess.run(command).returncode:
        raise UserError(f"{run} ended without its updates")
    records = read_run(run).of_kind("train")
    return Curve(run.name, [x["step"] for x in records], [x["loss"] for x in records])


def compare(plain: list[Curve], fast: list[Curve]) -> str:
    """Return a table in Markdown of some log steps, and in how many of all the range held."""
    rows = [["update", "fp32, lowest", "fp32, highest", *(curve.name for curve in fast)]]
    rows.append(["---"] * len(rows[0]))
    inside = [0] * len(fast)
    widest = 0.0
    steps = plain[0].xs
    for i, step in enumerate(steps):
        values = [curve.values[i] for curve in plain]
        own = [curve.values[i] for curve in fast]
        for k, value in enumerate(own):
            inside[k] += min(values) <= value <= max(values)
            widest = max(widest, value - max(values), min(values) - value)
        if (i + 1) % 5 == 0:
            numbers = [min(values), max(values), *own]
            rows.append([f"{step:.0f}", *(f"{number:.3f}" for number in numbers)])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    shares = ", ".join(f"{curve.name} {n}" for curve, n in zip(fast, inside, strict=True))
    return (
        f"{table}\n\nlog steps within the range of fp32, of {len(steps)}: {shares}; "
        f"never more than {widest:.3f} outside"
    )


def plot(curves: list[Curve], path: Path) -> None:
    """Draw all curves to an SVG file."""
    rows = [
        {"run": curve.name, "updates": x, "loss": y}
        for curve in curves
        for x, y in zip(curve.xs, curve.values, strict=True)
    ]
    spec = line_chart("curves", "loss", "training loss", points=False)
    spec |= {"datasets": {"curves": rows}, "width": 600, "height": 300, "config": CONFIG}
    path.write_text(vl_convert.vegalite_to_svg(spec), encoding="utf-8")


def main() -> None:
    """Parse the arguments, train, compare."""
    parser = argparse.ArgumentParser(description="loss curves of bf16 and fp32")
    parser.add_argument("recipe", type=Path, metavar="RECIPE")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--updates", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3, help="how many (3)")
    parser.add_argument("--run", type=Path, default=Path("runs/loss_curves"), metavar="DIR")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="a plot, in SVG")
    options = parser.parse_args()
    seeds = range(1, options.seeds + 1)
    plain = [train(options, "fp32", seed) for seed in seeds]
    fast = [train(options, "bf16", seed) for seed in seeds]
    print(compare(plain, fast))
    if options.output:
        plot([*plain, *fast], options.output)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"loss_curves: error: {error}")
