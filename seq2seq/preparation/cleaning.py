"""Rules that drop training pairs."""

from __future__ import annotations

import re
from collections.abc import Mapping

import xxhash

from seq2seq.config import CleaningConfig, Direction
from seq2seq.errors import UserError
from seq2seq.text.language import base_code, is_foreign, language_identifier

RULES = {
    "blank": "one side is blank",
    "control": "one side has control characters",
    "max_ratio": "the lengths differ too much",
    "languages": "one side is in another language",
    "duplicates": "the pair is a repetition",
    "overlap": "the source is in dev, test or exclude",
    "scores": "the score is too low",
    "held_out": "the source was held out for dev or test",
    "max_len": "one side has too many tokens",
}
"""Rules that drop a training pair, in order of application, with a description."""
KEPT = 0
CODES = {rule: number for number, rule in enumerate(RULES, start=KEPT + 1)}
"""Code of each rule (uint8)."""

CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffd-\uffff]")
"""Control characters (C0, C1) except tab, LF and CR; U+FFFD to U+FFFF."""
RATIO_EXEMPT_CHARACTERS = 20
"""`max_ratio` does not apply if both sides have at most this many characters."""


def require_pairs(num_pairs: int, dropped: Mapping[str, int]) -> None:
    """Raise UserError if no training pair is left. dropped: number of dropped pairs by rule."""
    if not num_pairs:
        counts = ", ".join(f"{count:,} {rule} ({RULES[rule]})" for rule, count in dropped.items())
        keys = "data.dev_size, data.test_size" if dropped.get("held_out") else "data.clean"
        raise UserError(f"no training pair is left: dropped {counts}; change {keys}")


def text_hash(text: str) -> int:
    """Return the hash of a text. Runs of white space count as one space."""
    return xxhash.xxh3_64_intdigest(" ".join(text.split()).encode())


def require_languages(*languages: str) -> None:
    """Raise UserError unless py3langid supports the languages."""
    for language in languages:
        if base_code(language) not in language_identifier().labels:
            raise UserError(
                f"data.clean.languages=true: py3langid does not support {language!r}: set it to "
                "false"
            )


def text_rule(rules: CleaningConfig, direction: Direction, source: str, target: str) -> int:
    """Return the code of the first rule that drops the pair because of its text, or KEPT.

    Other rules also depend on other pairs or on the tokenizer.
    """
    sides = source, target
    if rules.blank and not (source.strip() and target.strip()):
        return CODES["blank"]
    if rules.control and any(CONTROL.search(side) for side in sides):
        return CODES["control"]
    if rules.max_ratio is not None:
        shorter, longer = sorted((len(source), len(target)))
        if longer > RATIO_EXEMPT_CHARACTERS and longer > rules.max_ratio * shorter:
            return CODES["max_ratio"]
    if rules.languages and any(map(is_foreign, sides, direction)):
        return CODES["languages"]
    return KEPT
