"""Train layer variants for the same time and compare quality and speed.

Usage: python scripts/compare_variants.py --task translation --data FOLDER [--minutes 5]
       python scripts/compare_variants.py --task language_model --data FILE [--minutes 5]

FOLDER holds Multi30k's train and val as .en and .de; FILE is a text. One seed for each variant,
three for the baseline, whose range is the error bar. What a run in --out has finished is not done
again, so the same command resumes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

RECIPES = Path(__file__).parent.parent / "recipes"
BASELINE = ["model.norm=pre", "model.positions=sinusoidal", "model.activation=relu",
            "model.tied=true"]  # fmt: skip
VARIANTS = {
    "post-norm": ["model.norm=post"],
    "learned positions": ["model.positions=learned"],
    "rotary positions": ["model.positions=rotary"],
    "GELU": ["model.activation=gelu"],
    "SwiGLU": ["model.activation=swiglu"],
    "untied": ["model.tied=false"],
}
SEEDS = (1, 2, 3)
COMMON = ["training.schedule=cosine", "training.max_steps=100000", "training.warmup_steps=100",
          "training.validate_every=null", "training.validate_every_epochs=null",
          "training.checkpoint_every_minutes=null", "training.checkpoint_every_epochs=null",
          "training.average_last=0", "training.log_every=10"]  # fmt: skip
TASKS = {
    "translation": ["model.dropout=0.1", "data.clean.max_len=256", "data.test=null"],
    "language_model": ["model.dropout=0.1"],
}
MEASURES = {
    "translation": {"bleu": "BLEU", "nll": "nats per token"},
    "language_model": {"bits_per_character": "bits per character", "nll": "nats per character"},
}
"""Metrics of the last validation that are printed."""


@dataclass(frozen=True)
class Result:
    """One finished run."""

    name: str
    metrics: dict[str, float]
    updates: int
    tokens_per_second: float


def recipe_of(task: str, data: Path) -> list[str]:
    """Return the recipe and the keys that name its data."""
    if task == "language_model":
        recipe = RECIPES / "char_lm" / "tiny_shakespeare_cpu.yaml"
        return [str(recipe), f"data.text={data}"]
    recipe = RECIPES / "multi30k_en_de" / "recipe.yaml"
    return [str(recipe), f"data.train={data}/train", f"data.dev={data}/val"]


def train(name: str, run: Path, options: list[str]) -> Result:
    """Train one run, unless it is finished, and read what it measured."""
    command = [sys.executable, "-m", "seq2seq", "train", *options, "--run", str(run)]
    subprocess.run(command, check=True)
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    [*_, last] = [record for record in records if record["kind"] == "validation"]
    speeds = [r["tokens_per_second"] for r in records if r["kind"] == "train"]
    return Result(name, last, last["step"], statistics.median(speeds))


def table(results: list[Result], task: str) -> str:
    """Return the results as Markdown, each with its difference from the mean of the baseline."""
    measures = MEASURES[task]
    baseline = [each for each in results if each.name.startswith("baseline")]
    rows = ["| variant | " + " | ".join(measures.values()) + " | updates | tokens/s |",
            "|---|" + "---|" * (len(measures) + 2)]  # fmt: skip
    means = {key: statistics.mean(each.metrics[key] for each in baseline) for key in measures}
    speed = statistics.mean(each.tokens_per_second for each in baseline)
    for each in results:
        cells = [f"{each.metrics[key]:.3f} ({each.metrics[key] - means[key]:+.3f})"
                 for key in measures]  # fmt: skip
        cells += [f"{each.updates:,}", f"{each.tokens_per_second:,.0f} "
                  f"({each.tokens_per_second / speed - 1:+.0%})"]  # fmt: skip
        rows.append(f"| {each.name} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> None:
    """Parse the arguments, train one run after the other, and print the table."""
    parser = argparse.ArgumentParser(description="quality and speed of the layer's variants")
    parser.add_argument("--task", choices=[*TASKS], required=True)
    parser.add_argument("--data", type=Path, required=True, help="Multi30k's folder, or a text")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--out", type=Path, default=Path("runs/variants"), metavar="DIR")
    options = parser.parse_args()
    common = [*recipe_of(options.task, options.data), *COMMON, *TASKS[options.task], *BASELINE,
              f"training.max_minutes={options.minutes}"]  # fmt: skip
    # The baselines stand between the others, so that a machine that changes shows in their range.
    order = [("baseline, seed 1", [f"training.seed={SEEDS[0]}"])]
    for number, (name, keys) in enumerate(VARIANTS.items(), start=1):
        order.append((name, keys))
        if number % 3 == 0:
            seed = SEEDS[number // 3]
            order.append((f"baseline, seed {seed}", [f"training.seed={seed}"]))
    results = []
    for name, keys in order:
        run = options.out / options.task / name.replace(",", "").replace(" ", "_")
        results.append(train(name, run, [*common, *keys]))
    results.sort(key=lambda each: not each.name.startswith("baseline"))
    print(table(results, options.task))


if __name__ == "__main__":
    main()
