"""Options of a translation: keyword arguments in Python, flags on the command line."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from seq2seq.config import DecodingConfig, check_decoding, from_tree
from seq2seq.decoding.terms import Glossary
from seq2seq.errors import did_you_mean


@dataclass(frozen=True)
class Options:
    """Options of `Translator.translations` that are not keys of the section `decoding`."""

    nbest: int = 1
    scores: bool = True
    tokens: bool = False
    alignment: bool = False
    search: bool = True
    split: bool = True
    glossary: Glossary | None = None


def changed_decoding(decoding: DecodingConfig, changes: dict[str, Any]) -> DecodingConfig:
    """Return a section `decoding` with changed values; None leaves a value unchanged."""
    known = {key.name for key in fields(DecodingConfig)}
    if unknown := changes.keys() - known:
        name = min(unknown)
        raise TypeError(
            f"unknown option {name}{did_you_mean(name, known)} options are the arguments of the "
            "method and the keys of a recipe's section `decoding`"
        )
    given = {key: value for key, value in changes.items() if value is not None}
    changed = from_tree(decoding, given, "options", "decoding")
    check_decoding(changed)
    return changed
