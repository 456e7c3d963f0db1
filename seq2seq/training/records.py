"""Reading the lines that a run has written: metrics.jsonl and starts.jsonl. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

METRICS_FILE = "metrics.jsonl"
INITIAL = "initial_"
"""Before the names of metrics on the development set of the initial model."""
Number = float | int | str
"""What metrics.jsonl has."""
Records = tuple[list[dict[str, Any]], str | None]
"""The valid objects of a file, and what is wrong with the first invalid line, if one is."""


def read_metrics(run: Path) -> Records:
    """Return the metrics of a run, of every kind."""
    return read_records(run / METRICS_FILE, {"kind": str, "step": int}, only=Number)


def read_records(path: Path, fields: dict[str, type], only: Any = object) -> Records:
    """Return the objects of a file; none if there is no file, or not yet.

    fields: those that each has, with their types. only: the type of all values. A last line without
    a line feed, which is being written or was truncated by a crash, is left out.
    """
    found: list[dict[str, Any]] = []
    problem: str | None = None
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            break
        try:
            record = json.loads(line)
            typed = all(isinstance(record[key], kind) for key, kind in fields.items())
            if not typed or not all(isinstance(value, only) for value in record.values()):
                raise TypeError
            found.append(record)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            problem = problem or (
                f"{path}: line {number} is not a valid record: {line[:80]!r}; delete it"
            )
    return found, problem


def tokens_until(metrics: Sequence[dict[str, Any]]) -> tuple[list[int], list[float]]:
    """Return the updates of all log steps, from 0, and the target tokens until each of them."""
    steps, tokens = [0], [0.0]
    for each in metrics:
        if each["kind"] == "train":
            count = (each["step"] - steps[-1]) * float(each.get("tokens_per_update", 0.0))
            steps.append(each["step"])
            tokens.append(tokens[-1] + count)
    return steps, tokens
