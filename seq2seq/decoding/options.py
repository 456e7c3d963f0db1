"""The options of a translation, as keywords in Python and flags of a command."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from seq2seq.config import DecodingConfig, check_decoding, from_tree
from seq2seq.decoding.terms import Glossary
from seq2seq.errors import OptionError, UserError, did_you_mean


@dataclass(frozen=True)
class Options:
    """The options of a translation besides the section `decoding`."""

    nbest: int = 1
    """Number of translations."""
    scores: bool = True
    """With log-probabilities and scores, which take time."""
    tokens: bool = False
    """With log-probabilities of the pieces."""
    alignment: bool = False
    """With word alignments."""
    search: bool = True
    """Translate; otherwise only score the references."""
    split: bool = True
    """Translate parts of a text that is too long; otherwise it is an error."""
    glossary: Glossary | None = None


def changed_decoding(decoding: DecodingConfig, changes: dict[str, Any]) -> DecodingConfig:
    """Return a recipe's section `decoding` with other values; None leaves a value as it is."""
    known = {each.name for each in fields(DecodingConfig)}
    if unknown := changes.keys() - known:
        name = min(unknown)
        raise TypeError(
            f"{name} is not an option here{did_you_mean(name, known)} options are the keys of a "
            "recipe's section `decoding`, and arguments of the method"
        )
    given = {key: value for key, value in changes.items() if value is not None}
    try:
        changed = from_tree(decoding, given, "", "decoding")
        check_decoding(changed)
    except UserError as error:
        raise as_options(error) from None
    return changed


def as_options(error: UserError) -> OptionError:
    """Return an error about keys of the section `decoding` as one about options."""
    text = str(error).removeprefix(": ")
    return OptionError(re.sub(r"\bdecoding\.(\w+)", r"`\1`", text))
