"""Texts in UPPER or Title Case: translated in lower case, since models have hardly seen them."""

from __future__ import annotations

import re
from collections.abc import Callable

Recase = Callable[[str], str]
"""Returns a text in another case."""

_WORDS = re.compile(r"[^\W\d_]{2,}")
_WORD_START = re.compile(r"(?<![\w'’])\w")
_START = re.compile(r"(?:^|[.!?]\s+)\W*\w")
_FIRST = re.compile(r"[^\W_]|[\ue000-\uf8ff]")
"""The first letter or digit of a word, or the symbol of a protected span."""
_MIN_TITLE = 5
"""Shorter texts, such as the name of a button, may have a capital in each word anyway."""


def title_case(text: str) -> str:
    """Return a text with a capital at the start of each word."""
    return _WORD_START.sub(lambda match: match.group().upper(), text)


def sentence_case(text: str) -> str:
    """Return a text in lower case, with a capital at the start of each sentence."""
    return _START.sub(lambda match: match.group().upper(), text.lower())


def unusual_case(text: str) -> Recase | None:
    """Return what puts a translation in the case of a text in UPPER or Title Case, else None."""
    if text.isupper() and len(_WORDS.findall(text)) > 1:
        return str.upper
    return title_case if _is_title(text) else None


def _is_title(text: str) -> bool:
    """Return whether all words start with a capital. A dash between words is a menu's."""
    starts = [match and match[0] for match in map(_FIRST.search, text.split())]
    return len(starts) >= _MIN_TITLE and all(
        start and (start.isupper() or not start.isalpha()) for start in starts
    )


def recase_outside(text: str, recase: Recase, spans: re.Pattern[str] | None) -> str:
    """Return a text in another case, except the spans of a pattern."""
    if not spans:
        return recase(text)
    parts, done = [], 0
    for match in spans.finditer(text):
        parts += [recase(text[done : match.start()]), match.group()]
        done = match.end()
    return "".join([*parts, recase(text[done:])])
