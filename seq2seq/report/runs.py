"""Records of runs, read from their files without the weights, for `runs` and `report`."""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from seq2seq.config import Config, leaves, read_recipe, resolve, to_tree
from seq2seq.errors import UserError
from seq2seq.terminal import aligned
from seq2seq.training.records import (
    LOCK_FILE,
    METRICS,
    STARTS_FILE,
    metric_name,
    read_metrics,
    read_records,
)
from seq2seq.training.run_directory import RunState
from seq2seq.training.schedule import is_finished

Status = Literal["running", "finished", "stopped", "damaged"]

COLUMNS = ("status", "task", "updates", "best on dev", "minutes")
SAME_RUN = ("name", "data.store")
"""Recipe keys that are ignored in comparisons of recipes."""


@dataclass(frozen=True)
class RunRecord:
    """Status, recipe and metrics of a run, from its files."""

    path: Path
    status: Status
    problem: str | None = None
    """Error message for a damaged run."""
    config: Config | None = None
    """Recipe; None if it cannot be read."""
    metrics: Sequence[dict[str, Any]] = ()
    """Lines of metrics.jsonl."""
    starts: Sequence[dict[str, Any]] = ()
    """Lines of starts.jsonl."""
    state: RunState | None = None
    """State in the last checkpoint, or None."""

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Return the metrics of one kind: train, validation or average."""
        return [record for record in self.metrics if record["kind"] == kind]

    @property
    def updates(self) -> int:
        """Number of updates so far."""
        saved = self.state.step if self.state else 0
        return max([saved, *(int(record["step"]) for record in self.metrics)])

    @property
    def minutes(self) -> float:
        """Training time so far, in minutes."""
        return max((float(record.get("minutes", 0)) for record in self.metrics), default=0.0)

    @property
    def main_metric(self) -> str:
        """Key of the main metric: bleu, bits_per_character, accuracy, or nll."""
        measured = {"nll", *(key for record in self.of_kind("validation") for key in record)}
        return [key for key, metric in METRICS.items() if metric.best and key in measured][-1]

    @property
    def best_record(self) -> dict[str, Any]:
        """Metrics of the best model on the development set in the main metric, or {}."""
        key, records = self.main_metric, [*self.of_kind("validation"), *self.of_kind("average")]
        best = METRICS[key].best
        assert best
        known = [record for record in records if not math.isnan(record.get(key, math.nan))]
        record: dict[str, Any] = best(known, key=lambda record: float(record[key]), default={})
        return record

    @property
    def best_score(self) -> float | None:
        """Best score on the development set in the main metric, or None."""
        return self.best_record.get(self.main_metric)

    @property
    def best_directions(self) -> dict[str, float]:
        """Scores of the best model in each direction; {} for a model of one direction."""
        parts = ((*key.partition("/"), value) for key, value in self.best_record.items())
        return {name: value for key, _, name, value in parts if name and key == self.main_metric}

    def rows(self, name: str) -> list[list[str]]:
        """Return rows of a table with a name and `COLUMNS`: of the run, and of each direction."""
        metric, best = metric_name(self.main_metric), "none yet"
        if self.best_score is not None:
            best = f"{self.best_score:.2f} {metric}"
        task = self.config.task if self.config else "?"
        first = [name, self.status, task, f"{self.updates:,}", best, f"{self.minutes:.1f}"]
        directions = (
            [f"  {direction}", "", "", "", f"{score:.2f} {metric}", ""]
            for direction, score in self.best_directions.items()
        )
        return [first, *directions]


def read_run(path: Path) -> RunRecord:
    """Read the files of a run; raises UserError if the folder is not a run directory."""
    if not (path / STARTS_FILE).is_file():
        raise UserError(f"{path} is not a run directory; `seq2seq runs` lists runs")
    config = state = problem = None
    try:
        config = resolve(read_recipe(path / "recipe.yaml"), str(path / "recipe.yaml"))
        state = RunState.load(path / "last") if (path / "last").exists() else None
    except UserError as error:
        problem = str(error)
    metrics, starts = read_metrics(path), read_records(path / STARTS_FILE)
    status: Status = "stopped"
    if is_locked(path):
        status = "running"
    elif problem:
        status = "damaged"
    elif config and state and is_finished(config.training, state):
        status = "finished"
    return RunRecord(path, status, problem, config, metrics, starts, state)


def find_runs(*folders: Path) -> list[RunRecord]:
    """Return all runs in folders and their subfolders, sorted by path. A folder may be a run."""
    records = []
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder: name a run directory, or a folder of runs")
        for name, subfolders, files in os.walk(folder):
            subfolders[:] = sorted(path for path in subfolders if not path.startswith("."))
            if STARTS_FILE in files:
                subfolders.clear()
                records.append(read_run(Path(name)))
    return records


def is_locked(run: Path) -> bool:
    """Return whether a training process holds the lock of a run."""
    try:
        with (run / LOCK_FILE).open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)  # released on close
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def differences(records: Sequence[RunRecord]) -> list[dict[str, Any] | None]:
    """Return the recipe keys of each run that differ from its baseline, the first run of its task.

    The result is None for a baseline, and for a run with an unreadable recipe.
    """
    baselines: dict[str, dict[str, Any]] = {}
    result: list[dict[str, Any] | None] = []
    for recipe in map(flat_recipe, records):
        base = baselines.setdefault(recipe["task"], recipe) if recipe else recipe
        changed = [key for key, x in recipe.items() if key not in SAME_RUN and x != base.get(key)]
        result.append(None if base is recipe else {key: recipe[key] for key in changed})
    return result


def flat_recipe(record: RunRecord) -> dict[str, Any]:
    """Return a recipe as `section.key` to value; empty if the recipe is unreadable."""
    return leaves(to_tree(record.config)) if record.config else {}


def runs_tree(records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return a JSON object for each run."""
    return [
        {
            "run": str(run.path),
            "status": run.status,
            "task": run.config.task if run.config else None,
            "updates": run.updates,
            "metric": run.main_metric,
            "best": run.best_score,
            **({"directions": run.best_directions} if run.best_directions else {}),
            "minutes": round(run.minutes, 2),
            "differences": changed,
            **({"problem": run.problem} if run.problem else {}),
        }
        for run, changed in zip(records, differences(records), strict=True)
    ]


def runs_text(records: Sequence[RunRecord]) -> str:
    """Return a table with a line for each run."""
    rows = [["run", *COLUMNS, "keys that differ from the first run of the task"]]
    for run, changed in zip(records, differences(records), strict=True):
        listed = " ".join(f"{key}={_brief(value)}" for key, value in (changed or {}).items())
        recipe = run.problem or listed or ("(first run)" if changed is None else "none")
        first, *directions = run.rows(str(run.path))
        rows += [[*first, recipe], *([*row, ""] for row in directions)]
    return "\n".join(aligned(rows, left={0, 1, 2, 4, 6}))


def _brief(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."
