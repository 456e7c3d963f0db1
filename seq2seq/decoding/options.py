"""Options of a translation: what is wanted besides the text, and changes of a recipe's search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from seq2seq.config import DecodingConfig, check_decoding
from seq2seq.decoding.request import Request
from seq2seq.errors import UserError


@dataclass(frozen=True)
class Output:
    """What is wanted of each translation besides its text."""

    nbest: int = 1
    """Number of translations of each line."""
    tokens: bool = False
    """Log-probabilities of the tokens."""
    alignment: bool = False
    """Word alignments."""
    warnings: bool = False
    """Whether it seems to leave out part of the source."""
    search: bool = True
    """Translate; otherwise only score the references."""


PLAIN = Output()


def changed_decoding(decoding: DecodingConfig, changes: dict[str, Any]) -> DecodingConfig:
    """Return a recipe's section `decoding` with other values; None leaves a value as it is."""
    known = {each.name for each in fields(DecodingConfig)}
    if unknown := changes.keys() - known:
        raise TypeError(f"{min(unknown)} is not an option of translate")
    changed = replace(decoding, **{key: x for key, x in changes.items() if x is not None})
    check_decoding(changed)
    return changed


def check_options(requests: Sequence[Request], decoding: DecodingConfig, output: Output) -> None:
    """Raise UserError for options that exclude each other."""
    if output.nbest < 1:
        raise UserError(f"nbest={output.nbest} must be at least 1")
    if not decoding.sample and output.nbest > decoding.beam:
        raise UserError(
            f"nbest={output.nbest} needs a beam of at least as many hypotheses, not "
            f"{decoding.beam}; widen it with --beam"
        )
    required = any(term.required for request in requests for term in request.terms)
    if required and decoding.sample:
        raise UserError("terms that must appear need a beam search: leave --sample out")
    if required and decoding.diverse_groups > 1:
        raise UserError("terms that must appear need the whole beam: leave --diverse-groups out")
