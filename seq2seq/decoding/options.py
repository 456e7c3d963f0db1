"""Options of a translation: keyword arguments in Python, flags on the command line."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from seq2seq.config import DecodingConfig, check_decoding, from_tree
from seq2seq.decoding.terms import Glossary
from seq2seq.errors import OptionError, UserError, did_you_mean


@dataclass(frozen=True)
class Options:
    """Options of a translation that are not keys of the section `decoding`."""

    nbest: int = 1
    """Number of translations of each text."""
    scores: bool = True
    """Compute log-probabilities and scores. This may take extra time."""
    tokens: bool = False
    """Return the log-probability of each piece."""
    alignment: bool = False
    """Return word alignments."""
    search: bool = True
    """Translate; if False, only score the references."""
    split: bool = True
    """Translate a text that is too long in parts; if False, it is an error."""
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
    try:
        changed = from_tree(decoding, given, "", "decoding")
        check_decoding(changed)
    except UserError as error:
        raise as_options(error) from None
    return changed


def as_options(error: UserError) -> OptionError:
    """Return an error about keys of the section `decoding` as an error about options."""
    text = str(error).removeprefix(": ")
    return OptionError(re.sub(r"\bdecoding\.(\w+)", r"`\1`", text))
