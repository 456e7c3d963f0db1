"""Numbers that another program, such as COMET or MetricX, gave to each line of each system."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seq2seq.data.lines import read_file
from seq2seq.errors import UserError
from seq2seq.evaluation.systems import System

KEYS = ("score", "prediction")
"""Fields of a JSON line with its number, besides the metric's name: MetricX writes `prediction`."""


def read_line_scores(
    given: Sequence[Sequence[str]], systems: Sequence[System]
) -> dict[str, list[list[float]]]:
    """Return the numbers of each line, of each system, by the names of metrics.

    given: of each metric its name and its files. A file is what `comet-score --to_json` writes,
    JSON lines with a field `name`, `score` or `prediction`, or a table of numbers with a
    tab-separated column for each system; its first line may be a header. Several files: the columns
    of the first come first.
    """
    found: dict[str, list[list[float]]] = {}
    for name, *files in given:
        if not files:
            raise UserError(f"--line-scores {name}: name a file after the metric's name")
        found[name] = [column for file in files for column in _read(Path(file), name)]
        listed = ", ".join(files)
        if len(found[name]) != len(systems):
            raise UserError(
                f"--line-scores {name}: {len(systems)} system(s), but {len(found[name])} "
                f"column(s) in {listed}"
            )
        for system, column in zip(systems, found[name], strict=True):
            if len(column) != len(system.lines):
                raise UserError(
                    f"--line-scores {name}: {len(system.lines)} lines, but {len(column)} numbers "
                    f"in {listed}"
                )
    return found


def _read(path: Path, name: str) -> list[list[float]]:
    lines = [line for line in read_file(path) if line.strip()]
    if not lines:
        raise UserError(f"{path} is empty")
    try:
        if lines[0].lstrip().startswith("{"):
            return _from_json(lines, name)
        return _from_table(lines)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(
            f"{path} holds no numbers of {name}: neither what comet-score writes, nor JSON lines "
            f"with a field {name}, {' or '.join(KEYS)}, nor columns of numbers"
        ) from None


def _from_json(lines: Sequence[str], name: str) -> list[list[float]]:
    try:
        whole: dict[str, Any] = json.loads("\n".join(lines))
    except ValueError:  # one object a line
        return [[_number(json.loads(line), name) for line in lines]]
    if any(isinstance(value, list) for value in whole.values()):
        return [[_number(each, name) for each in segments] for segments in whole.values()]
    return [[_number(whole, name)]]


def _number(fields: dict[str, Any], name: str) -> float:
    by_name = {key.lower(): value for key, value in fields.items()}
    keys = [key for key in (name.lower(), *KEYS) if key in by_name]
    return _finite(by_name[keys[0]]) if keys else _finite(fields[name])


def _from_table(lines: Sequence[str]) -> list[list[float]]:
    rows = [line.split("\t") for line in lines]
    try:
        first = [[_finite(cell) for cell in rows[0]]]
    except ValueError:  # a header
        first = []
    numbers = first + [[_finite(cell) for cell in row] for row in rows[1:]]
    return [list(column) for column in zip(*numbers, strict=True)]


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is not finite")
    return number
