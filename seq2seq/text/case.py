"""Texts in capitals: translated in lower case, since models have hardly seen capitals."""

from __future__ import annotations

import re

_WORDS = re.compile(r"[^\W\d_]{2,}")
_START = re.compile(r"(?:^|[.!?]\s+)\W*\w")


def is_upper(text: str) -> bool:
    """Return whether a text has at least two words, all of them in capitals."""
    return text.isupper() and len(_WORDS.findall(text)) > 1


def sentence_case(text: str) -> str:
    """Return a text in lower case, with a capital at the start of each sentence."""
    return _START.sub(lambda match: match.group().upper(), text.lower())


def upper_outside(text: str, spans: re.Pattern[str] | None) -> str:
    """Return a text in capitals, except the spans of a pattern."""
    if not spans:
        return text.upper()
    parts, done = [], 0
    for match in spans.finditer(text):
        parts += [text[done : match.start()].upper(), match.group()]
        done = match.end()
    return "".join([*parts, text[done:].upper()])
