"""What is known of runs from their files, without their weights: for `runs` and `report`."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from seq2seq.config import Config, leaves, read_recipe, resolve, to_tree
from seq2seq.errors import UserError
from seq2seq.model.saved import LOCK_FILE, STARTS_FILE
from seq2seq.tables import aligned
from seq2seq.training.checkpoint import RunState
from seq2seq.training.records import METRICS, METRICS_FILE, metric_name, read_metrics, read_records
from seq2seq.training.schedule import due

if sys.platform != "win32":
    import fcntl

Status = Literal["running", "finished", "stopped", "damaged"]

COLUMNS = ("status", "task", "updates", "best on dev", "minutes")
"""Of tables of runs."""
SAME_RUN = ("name", "data.store")
"""Keys that are no difference between recipes."""


@dataclass(frozen=True)
class RunRecord:
    """A run as its files describe it."""

    path: Path
    status: Status
    problem: str | None = None
    """Why it is damaged."""
    config: Config | None = None
    """The recipe; None if it is damaged."""
    metrics: Sequence[dict[str, Any]] = ()
    """The lines of metrics.jsonl."""
    starts: Sequence[dict[str, Any]] = ()
    """The lines of starts.jsonl."""
    state: RunState | None = None
    """Of the last checkpoint."""

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.path.resolve().name

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Return the metrics of a kind: train, validation or average."""
        return [record for record in self.metrics if record["kind"] == kind]

    @property
    def updates(self) -> int:
        """Number of updates, as last recorded."""
        steps = [int(record["step"]) for record in self.metrics]
        return max([*steps, self.state.step if self.state else 0])

    @property
    def minutes(self) -> float:
        """Training time, as last recorded."""
        return max((float(record.get("minutes", 0)) for record in self.metrics), default=0.0)

    @property
    def main_metric(self) -> str:
        """The name of the score that matters: BLEU, bits per character, accuracy, or nll."""
        measured = {"nll", *(key for record in self.of_kind("validation") for key in record)}
        return [name for name, each in METRICS.items() if each.best and name in measured][-1]

    @property
    def best_score(self) -> float | None:
        """The best score on the development set."""
        measured = [*self.of_kind("validation"), *self.of_kind("average")]
        values = [float(each[self.main_metric]) for each in measured if self.main_metric in each]
        best = METRICS[self.main_metric].best
        assert best
        return best((value for value in values if not math.isnan(value)), default=None)

    def cells(self) -> list[str]:
        """Return what tables of runs show, under `COLUMNS`."""
        best = "none yet"
        if self.best_score is not None:
            best = f"{self.best_score:.2f} {metric_name(self.main_metric)}"
        task = self.config.task if self.config else "?"
        return [self.status, task, f"{self.updates:,}", best, f"{self.minutes:.1f}"]


def read_run(path: Path) -> RunRecord:
    """Read the files of a run; raises UserError for a folder that is none."""
    names = (STARTS_FILE, METRICS_FILE)
    if not any((path / name).is_file() for name in names):
        raise UserError(
            f"{path} is not a run directory: it has no {' and no '.join(names)}; "
            "`seq2seq runs` lists the runs"
        )
    problems: list[str] = []
    config = state = None
    try:
        config = resolve(read_recipe(path / "recipe.yaml"), str(path / "recipe.yaml"))
    except UserError as error:
        problems.append(str(error))
    try:
        state = RunState.load(path / "last") if (path / "last").exists() else None
    except UserError as error:
        problems.append(str(error))
    metrics, starts = read_metrics(path), read_records(path / STARTS_FILE)
    status: Status = "stopped"
    if is_locked(path):
        status = "running"
    elif problems:
        status = "damaged"
    elif config and state and due(config.training, state).finished:
        status = "finished"
    problem = problems[0] if problems else None
    return RunRecord(path, status, problem, config, metrics, starts, state)


def find_runs(*folders: Path) -> list[RunRecord]:
    """Return all runs in folders and their subfolders, by name; a folder itself if it is a run."""
    found = []
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder: name a run directory, or a folder of runs")
        for name, below, files in os.walk(folder):
            below[:] = sorted(each for each in below if not each.startswith("."))
            if STARTS_FILE in files:
                below.clear()
                found.append(read_run(Path(name)))
    return found


def is_locked(run: Path) -> bool:
    """Return whether a process trains there."""
    if sys.platform == "win32":
        return False
    try:
        with (run / LOCK_FILE).open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)  # released when it is closed
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def differences(records: Sequence[RunRecord]) -> list[dict[str, Any] | None]:
    """Return the keys of each recipe that differ from that of the first run of the same task.

    None for that first run, and for a run whose recipe cannot be read.
    """
    first: dict[str, dict[str, Any]] = {}
    found: list[dict[str, Any] | None] = []
    for recipe in map(flat_recipe, records):
        base = first.setdefault(recipe["task"], recipe) if recipe else recipe
        changed = [key for key, x in recipe.items() if key not in SAME_RUN and x != base.get(key)]
        found.append(None if base is recipe else {key: recipe[key] for key in changed})
    return found


def flat_recipe(record: RunRecord) -> dict[str, Any]:
    """Return all keys of a recipe, as `section.key`; none if it cannot be read."""
    return leaves(to_tree(record.config)) if record.config else {}


def runs_tree(records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return a JSON object for each run."""
    return [
        {
            "run": str(each.path),
            "status": each.status,
            "task": each.config.task if each.config else None,
            "updates": each.updates,
            "metric": each.main_metric,
            "best": each.best_score,
            "minutes": round(each.minutes, 2),
            "differences": own,
            **({"problem": each.problem} if each.problem else {}),
        }
        for each, own in zip(records, differences(records), strict=True)
    ]


def runs_text(records: Sequence[RunRecord]) -> str:
    """Return a table with a line for each run."""
    rows = [["run", *COLUMNS, "recipe"]]
    for each, own in zip(records, differences(records), strict=True):
        listed = " ".join(f"{key}={_brief(value)}" for key, value in (own or {}).items())
        recipe = each.problem or listed or ("(baseline)" if own is None else "the same")
        rows.append([str(each.path), *each.cells(), recipe])
    return "\n".join(aligned(rows, left={0, 1, 2, 4, 6}))


def _brief(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."
