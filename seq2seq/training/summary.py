"""What a finished run says: its best score, what it cost, and what to do next."""

from __future__ import annotations

from pathlib import Path

from seq2seq.config import Config
from seq2seq.progress_bar import duration
from seq2seq.task import load_task
from seq2seq.training.records import INITIAL, read_metrics
from seq2seq.training.state import RunState


def summary(config: Config, run: Path, state: RunState) -> str:
    """Return the best model and its score, updates and time, and the next three commands."""
    by = config.training.best_by
    lines = []
    if state.best and state.best_score is not None:
        score = -state.best_score if by == "nll" else state.best_score
        update = state.best.rpartition("_")[2]
        kind = "the average of checkpoints" if "average" in state.best else f"update {update}"
        lines.append(f"best model: {run / 'best'}, {by} {score:.2f} on the development set, {kind}")
    lines += _forgetting(config, run, state)
    lines.append(f"cost: {state.step:,} updates in {duration(state.minutes)}")
    lines += [
        "next:",
        f"  seq2seq evaluate {run}",
        f"  seq2seq {load_task(config.task).use.format(run=run)}",
        f"  seq2seq report {run}",
    ]
    return "\n".join(lines)


def _forgetting(config: Config, run: Path, state: RunState) -> list[str]:
    """Return the scores of the initial model and of the best one, on both development sets."""
    by = config.training.best_by
    validations = [each for each in read_metrics(run)[0] if each["kind"] != "train"]
    first = next((each for each in validations if each["step"] == 0), {})
    best = next((each for each in reversed(validations) if each.get("best")), {})
    if f"{INITIAL}{by}" not in first or f"{INITIAL}{by}" not in best:
        return []
    sets = {"this development set": by, f"that of {config.training.init_from}": f"{INITIAL}{by}"}
    return [
        f"on {name}: {by} {first[key]:.2f} before, {best[key]:.2f} now "
        f"({best[key] - first[key]:+.2f})"
        for name, key in sets.items()
    ]
