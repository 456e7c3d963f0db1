"""Names and records of a run: metrics.jsonl and starts.jsonl, written and read without torch."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from seq2seq.data.tokenizer import TOKENIZER_FILES
from seq2seq.errors import UserError, named_output
from seq2seq.files import write_file
from seq2seq.formats.model_directory import MODEL_FILE, is_model

METRICS_FILE = "metrics.jsonl"
STARTS_FILE = "starts.jsonl"
LOCK_FILE = ".lock"
RUN_NAMES = (
    *("recipe.yaml", METRICS_FILE, STARTS_FILE, *TOKENIZER_FILES),
    *("best", "last", "averaged", "checkpoints", "kept"),
)
"""Files, links and folders of a run."""


class Metric(NamedTuple):
    """Title, format and direction of a validation metric."""

    title: str
    """Title of its curve in a report; empty for no curve."""
    digits: int | None = None
    """Number of decimals in the log; None if it is not logged."""
    best: Callable[..., Any] | None = None
    """min or max for metrics that can be the score of a run; a run uses the last that it has."""


METRICS = {
    "nll": Metric("nll (nats per token)", 2, best=min),
    "perplexity": Metric("", 2),
    "bleu": Metric("BLEU (0 to 100)", 2, best=max),
    "chrf": Metric("chrF2 (0 to 100)", 2),
    "ter": Metric("TER (lower is better)"),
    "bits_per_character": Metric("bits per character (lower is better)", 3, best=min),
    "stride": Metric("", 0),
    "bits_per_byte": Metric("bits per byte (lower is better)"),
    "accuracy": Metric("accuracy (per cent)", 2, best=max),
}
"""Validation metrics, in the order of the log."""
PACKAGES = ("seq2seq", "torch", "accelerate", "datasets", "numpy", "sentencepiece", "sacrebleu")
"""Packages whose versions are recorded at each start."""


def metric_name(key: str) -> str:
    """Return the printed name of a metric: the title of its curve, or else its key in words."""
    title = METRICS[key].title.partition(" (")[0] if key in METRICS else ""
    return title or key.replace("_", " ")


def direction_rows(metrics: Mapping[str, Any]) -> list[list[str]]:
    """Return a table of the metrics of each direction and their means; [] for one direction."""
    names = dict.fromkeys(key.partition("/")[2] for key in metrics if "/" in key)
    keys = [key for key, metric in METRICS.items() if metric.title and key in metrics]
    rows = [[name, *(f"{metrics[f'{key}/{name}']:.2f}" for key in keys)] for name in names]
    means = ["mean", *(f"{metrics[key]:.2f}" for key in keys)]
    return [["direction", *map(metric_name, keys)], *rows, means] if names else []


def record_metrics(run: Path, kind: str, step: int, metrics: dict[str, float]) -> None:
    """Append a record to metrics.jsonl; raises UserError if the disk is full."""
    _append(run / METRICS_FILE, {"kind": kind, "step": step, **metrics})


def drop_metrics_after(run: Path, **last_steps: int) -> None:
    """Drop metrics that a resumed run will write again, and lines truncated by a crash.

    last_steps: last update that the run does not make again, by kind of metrics.
    """
    if (path := run / METRICS_FILE).exists():
        known = [
            each
            for each in read_metrics(run)
            if each["step"] <= last_steps.get(each["kind"], last_steps["train"])
        ]
        write_file(path, "".join(map(_json_line, known)))


def record_start(folder: Path, **facts: Any) -> None:
    """Append a record to starts.jsonl: time, command, commit, versions and the given facts."""
    packages = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    record = {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": sys.argv,
        "commit": _git_commit(),
        "python": platform.python_version(),
        "packages": packages,
        "platform": platform.platform(),
    }
    _append(folder / STARTS_FILE, record | facts)


def _append(path: Path, record: dict[str, Any]) -> None:
    with named_output(path), path.open("a", encoding="utf-8") as stream:
        stream.write(_json_line(record))


def _json_line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


def _git_commit() -> str | None:
    """Return the commit of the running code, with a plus if files are modified.

    None if the package is installed: a repository around it belongs to another project.
    """
    folder = Path(__file__).parents[2]
    if not (folder / ".git").exists():
        return None
    git = ["git", "--no-optional-locks", "-C", str(folder), "describe"]
    options = ["--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
    with suppress(OSError, subprocess.SubprocessError):
        commit = subprocess.check_output([*git, *options], stderr=subprocess.DEVNULL, text=True)
        return commit.strip()
    return None


def last_start(run: Path) -> dict[str, Any]:
    """Return the last record of starts.jsonl, or {}."""
    starts = read_records(run / STARTS_FILE)
    return starts[-1] if starts else {}


def corpus_files(run: Path) -> list[Path]:
    """Return the corpus files that the data of a run were prepared from."""
    inputs = last_start(run).get("data", {}).get("inputs", [])
    return [Path(current_path(entry["file"], run)) for entry in inputs if "file" in entry]


def current_path(path: str, run: Path) -> str:
    """Return where a recorded path is now: it may have been moved together with the run.

    Only its folder has to exist: the path may be a prefix of file names.
    """
    before = last_start(run).get("run")
    if Path(path).parent.exists() or not before:
        return path
    moved = Path(os.path.normpath(run.resolve() / os.path.relpath(path, before)))
    return str(moved) if moved.parent.exists() else path


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return all records of metrics.jsonl."""
    return read_records(run / METRICS_FILE)


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects of a file, one per line, or [] if it does not exist.

    Invalid lines are ignored: the last line may be incomplete.
    """
    records = []
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        with suppress(ValueError):
            records.append(json.loads(line))
    return records


def require_outside_of_runs(output: Path) -> None:
    """Raise UserError for an output that would overwrite a file of a run or model directory."""
    target = output.resolve()
    inner = [target, *target.parents]
    if is_model(target.parent) or any(p.name in RUN_NAMES and _is_run(p.parent) for p in inner):
        raise UserError(f"{output} belongs to a run or a model; name another -o")


def require_new_folder(output: Path) -> None:
    """Raise UserError for an output folder that exists or lies in a run or model directory."""
    require_outside_of_runs(output)
    if output.exists() or output.is_symlink():
        raise UserError(f"{output} exists; name a new folder with -o")


def not_a_run(folder: Path) -> str | None:
    """Return an error message if a run would overwrite files of another kind of folder."""
    existing = [name for name in (*RUN_NAMES, MODEL_FILE) if (folder / name).exists()]
    if not existing or _is_run(folder):
        return None
    return (
        f"{folder} holds {existing[0]}, but is not a run directory (it has no {STARTS_FILE}): "
        "name another directory with --run"
    )


def _is_run(folder: Path) -> bool:
    return (folder / STARTS_FILE).exists()
