"""The options of a translation, as keywords in Python and flags of a command."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from seq2seq.config import DecodingConfig, check_decoding, from_tree
from seq2seq.decoding.segments import Request
from seq2seq.errors import OptionError, UserError, did_you_mean

ARGUMENTS = (
    "prefixes", "constraints", "references", "glossary", "split", "nbest", "tokens", "alignment",
    "search",
)  # fmt: skip
"""The arguments of `Translator.translations`, besides the keys of the recipe."""


def changed_decoding(decoding: DecodingConfig, changes: dict[str, Any]) -> DecodingConfig:
    """Return a recipe's section `decoding` with other values; None leaves a value as it is."""
    known = {each.name for each in fields(DecodingConfig)}
    if unknown := changes.keys() - known:
        name = min(unknown)
        raise TypeError(
            f"{name} is not an option here{did_you_mean(name, {*known, *ARGUMENTS})} options are "
            "the keys of a recipe's section `decoding`, and arguments of Translator.translations, "
            "some of which Translator.translate does not have"
        )
    given = {key: x for key, x in changes.items() if x is not None}
    try:
        checked = from_tree(DecodingConfig(), given, "", "decoding")
        changed = replace(decoding, **{key: getattr(checked, key) for key in given})
        check_decoding(changed)
    except UserError as error:
        raise as_options(error) from None
    return changed


@dataclass(frozen=True)
class Outputs:
    """What to make of a text, besides a translation by the section `decoding`."""

    nbest: int = 1
    scores: bool = True
    """Log-probabilities and scores; they take time."""
    tokens: bool = False
    """Log-probabilities of the pieces."""
    alignment: bool = False
    warnings: bool = True
    """Warnings of repetitions and omissions; they take time."""
    search: bool = True
    """Whether to translate, or only to score the references."""
    split: bool = True
    """Whether to translate parts of a text that is too long, or to return an error."""


def check_options(requests: Sequence[Request], decoding: DecodingConfig, nbest: int) -> None:
    """Raise UserError for options that exclude each other."""
    if nbest < 1:
        raise OptionError(f"`nbest`={nbest} must be at least 1")
    if not decoding.sample and nbest > decoding.beam:
        raise OptionError(
            f"`nbest`={nbest} needs a beam of at least as many hypotheses, not {decoding.beam}; "
            "widen `beam`"
        )
    required = any(term.required for request in requests for term in request.terms)
    if required and decoding.sample:
        raise OptionError("terms that must appear need a beam search: leave `sample` out")


def as_options(error: UserError) -> OptionError:
    """Return an error about keys of the section `decoding` as one about options."""
    text = str(error).removeprefix(": ")
    return OptionError(re.sub(r"\bdecoding\.(\w+)", r"`\1`", text))
