"""Numbers that other programs, such as COMET and MetricX, gave to each line of each system."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seq2seq.data.lines import read_file
from seq2seq.errors import UserError
from seq2seq.evaluation.systems import System

Column = tuple[str | None, list[float]]
"""The name of a system, if the file has it, and the number of each of its lines."""


def read_line_scores(
    given: Sequence[Sequence[str]], systems: Sequence[System]
) -> dict[str, list[list[float]]]:
    """Return the numbers of each line, of each system, by the names of metrics.

    given: the name of each metric and its files. A file is what `comet-score --to_json` writes,
    JSON lines with a field `name`, `score` or `prediction`, or a table of numbers with a
    tab-separated column for each system. Several files: the columns of the first come first, unless
    the files name the systems, as COMET's do.
    """
    names = [Path(system.name).name for system in systems]
    lines = [len(system.lines) for system in systems]
    found = {}
    for name, *files in given:
        option, listed = f"--line-scores {name}", ", ".join(files) or "no file"
        read = [column for file in files for column in _read(Path(file), name)]
        columns = [numbers for _, numbers in read]
        if named := {Path(key).name: numbers for key, numbers in read if key is not None}:
            if sorted(named) != sorted(names):
                raise UserError(
                    f"{option}: {listed} is about {', '.join(named)}, but the systems are "
                    f"{', '.join(names)}: score files of these names, or give columns of numbers"
                )
            columns = [named[system] for system in names]
        if (lens := [len(numbers) for numbers in columns]) != lines:
            raise UserError(
                f"{option}: the columns of {listed} have {lens} numbers, but the systems have "
                f"{lines} lines"
            )
        found[name] = columns
    return found


def _read(path: Path, name: str) -> list[Column]:
    lines = [line for line in read_file(path) if line.strip()]
    try:
        if lines[0].lstrip().startswith("{"):
            values = _from_json(lines, name)
        else:
            rows = [line.split("\t") for line in lines]
            values = [(None, column) for column in zip(*rows, strict=True)]
        columns = [(system, list(map(float, column))) for system, column in values]
        if not all(math.isfinite(number) for _, column in columns for number in column):
            raise ValueError("not finite")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise UserError(
            f"{path} holds no numbers of {name}: neither what comet-score writes, nor JSON lines "
            f"with a field {name}, score or prediction, nor columns of numbers"
        ) from None
    return columns


def _from_json(lines: Sequence[str], name: str) -> list[tuple[str | None, Sequence[Any]]]:
    try:
        whole: dict[str, Any] = json.loads("\n".join(lines))
    except ValueError:  # one object a line
        whole = {}
    if any(isinstance(value, list) for value in whole.values()):
        return [(system, [_value(each, name) for each in own]) for system, own in whole.items()]
    return [(None, [_value(json.loads(line), name) for line in lines])]


def _value(fields: dict[str, Any], name: str) -> Any:
    by_name = {key.lower(): value for key, value in fields.items()}
    keys = [key for key in (name.lower(), "score", "prediction") if key in by_name]
    return by_name[keys[0]]
