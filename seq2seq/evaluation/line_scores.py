"""Numbers that another program, such as COMET or MetricX, gave to each line of each system."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from seq2seq.data.lines import read_file
from seq2seq.errors import UserError
from seq2seq.evaluation.systems import System

Column = tuple[str | None, list[float]]
"""The name of a system, if the file has it, and the number of each of its lines."""
KEYS = ("score", "prediction")
"""Fields of a JSON line with its number, besides the metric's name: MetricX writes `prediction`."""


def read_line_scores(
    given: Sequence[Sequence[str]], systems: Sequence[System]
) -> dict[str, list[list[float]]]:
    """Return the numbers of each line, of each system, by the names of metrics.

    given: of each metric its name and its files. A file is what `comet-score --to_json` writes,
    JSON lines with a field `name`, `score` or `prediction`, or a table of numbers with a
    tab-separated column for each system; its first line may be a header. Several files: the columns
    of the first come first, unless the files name the systems, as COMET's do.
    """
    found: dict[str, list[list[float]]] = {}
    for name, *files in given:
        if not files:
            raise UserError(f"--line-scores {name}: name a file after the metric's name")
        columns = [column for file in files for column in _read(Path(file), name)]
        listed = ", ".join(files)
        if len(columns) != len(systems):
            raise UserError(
                f"--line-scores {name}: {len(systems)} system(s), but {len(columns)} column(s) in "
                f"{listed}"
            )
        found[name] = _in_order(name, columns, systems, listed)
        for system, column in zip(systems, found[name], strict=True):
            if len(column) != len(system.lines):
                raise UserError(
                    f"--line-scores {name}: {len(system.lines)} lines, but {len(column)} numbers "
                    f"in {listed}"
                )
    return found


def _in_order(
    name: str, columns: Sequence[Column], systems: Sequence[System], listed: str
) -> list[list[float]]:
    """Return the numbers of each system, which a file may name; else they are in order."""
    named = {Path(key).name: numbers for key, numbers in columns if key is not None}
    if not named:
        return [numbers for _, numbers in columns]
    own = [Path(system.name).name for system in systems]
    if len(set(own)) < len(own) or {*named} != {*own}:
        raise UserError(
            f"--line-scores {name}: {listed} is about {', '.join(named)}, but the systems are "
            f"{', '.join(own)}: score files of these names, or give columns of numbers"
        )
    return [named[each] for each in own]


def _read(path: Path, name: str) -> list[Column]:
    lines = [line for line in read_file(path) if line.strip()]
    if not lines:
        raise UserError(f"{path} is empty")
    try:
        is_json = lines[0].lstrip().startswith("{")
        values = _from_json(lines, name) if is_json else _from_table(lines)
        columns = [(system, list(map(float, column))) for system, column in values]
        if not all(math.isfinite(number) for _, column in columns for number in column):
            raise ValueError("not finite")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise UserError(
            f"{path} holds no numbers of {name}: neither what comet-score writes, nor JSON lines "
            f"with a field {name}, {' or '.join(KEYS)}, nor columns of numbers"
        ) from None
    return columns


def _from_json(lines: Sequence[str], name: str) -> list[tuple[str | None, list[Any]]]:
    with suppress(ValueError):  # one object a line
        whole: dict[str, Any] = json.loads("\n".join(lines))
        if any(isinstance(value, list) for value in whole.values()):
            return [(key, [_value(each, name) for each in own]) for key, own in whole.items()]
    return [(None, [_value(json.loads(line), name) for line in lines])]


def _value(fields: dict[str, Any], name: str) -> Any:
    by_name = {key.lower(): value for key, value in fields.items()}
    keys = [key for key in (name.lower(), *KEYS) if key in by_name]
    return by_name[keys[0]]


def _from_table(lines: Sequence[str]) -> list[tuple[str | None, Sequence[Any]]]:
    rows = [line.split("\t") for line in lines]
    try:
        list(map(float, rows[0]))
    except ValueError:  # a header
        del rows[0]
    return [(None, column) for column in zip(*rows, strict=True)]
