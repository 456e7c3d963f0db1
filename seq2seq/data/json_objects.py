"""JSON objects: one per line, or one per file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seq2seq.errors import UserError


def read_object(line: str) -> dict[str, Any]:
    """Read a JSON object; raises ValueError, with the reason, for anything else.

    NaN, infinite numbers and lone surrogates are rejected: they could not be written again.
    """
    fields = json.loads(line)
    write_object(fields).encode()
    if not isinstance(fields, dict):
        raise ValueError("it is another JSON value")
    return fields


def write_object(fields: Mapping[str, Any]) -> str:
    """Return an object as one line, without line feed."""
    return json.dumps(fields, ensure_ascii=False, allow_nan=False)


def read_object_file(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """Read a file with one JSON object; {} if an optional file is missing."""
    if optional and not path.exists():
        return {}
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from None
