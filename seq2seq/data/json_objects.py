"""JSON objects: one in a line, in strict JSON, or one in a file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from seq2seq.errors import UserError, shown

MAX_DEPTH = 100
"""Of nested lists and objects."""


def read_object(line: str) -> dict[str, Any]:
    """Read a JSON object; raises ValueError, with the reason, for anything else.

    What Python reads beyond JSON, and could not be written again, is not accepted: NaN, numbers
    that are too large for a float, lone surrogates, and a key that occurs twice.
    """
    try:
        fields = json.loads(
            line,
            parse_int=_whole,
            parse_float=_finite,
            parse_constant=_no_constant,
            object_pairs_hook=_distinct,
        )
        too_deep = line.count("[") + line.count("{") > MAX_DEPTH and _depth(fields) > MAX_DEPTH
    except RecursionError:
        too_deep = True
    if too_deep:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    if not isinstance(fields, dict):
        raise ValueError("it is no object")
    if "\\u" in line:
        try:
            write_object(fields).encode()
        except UnicodeEncodeError:
            raise ValueError("it contains a lone surrogate") from None
    return fields


def write_object(fields: Mapping[str, Any]) -> str:
    """Return an object as a line, without the line feed."""
    return json.dumps(fields, ensure_ascii=False, allow_nan=False)


def read_object_file(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """Read a file with one JSON object; {} for a missing file, if it is optional."""
    if optional and not path.exists():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: it holds no object")
    return content


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text:.20} is too large a number")
    return number


def _whole(text: str) -> int:
    _finite(text)
    return int(text)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"it has the key {shown(twice)} twice")
    return fields


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _depth(value: Any) -> int:
    """Return the number of nested levels, without recursion."""
    depth, level = 0, [value]
    while level := [each for each in level if isinstance(each, list | dict)]:
        depth += 1
        level = [x for each in level for x in (each.values() if isinstance(each, dict) else each)]
    return depth
