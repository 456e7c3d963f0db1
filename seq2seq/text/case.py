"""Texts in UPPER or Title Case: translated in lower case, since models have hardly seen them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from seq2seq.text.protect import ProtectedText

Recase = Callable[[str], str]
"""Returns a text in another case."""
Ranges = Iterable[tuple[int, int]]
"""Start and end of parts of a text."""

_WORDS = re.compile(r"[^\W\d_]{2,}")
_WORD_START = re.compile(r"(?<![\w'’])\w")
_START = re.compile(r"(?:^|[.!?]\s+)\W*\w")
_FIRST = re.compile(r"[^\W_]|[\ue000-\uf8ff]")
"""The first letter or digit of a word, or the symbol of a protected span."""
_MIN_TITLE = 5
"""Shorter texts, such as the name of a button, may have a capital in each word anyway."""


@dataclass(frozen=True)
class SentenceCase:
    """Stage: the model reads a text in UPPER or Title Case in sentence case."""

    knows: Callable[[str], bool]
    """Whether the vocabulary has a word."""
    terms: Callable[[str], Ranges] = lambda text: ()
    """Returns the ranges of case-sensitive terms in a text; they keep their capitals."""
    pattern: re.Pattern[str] | None = None
    """Pattern of protected spans. Spans keep their case."""

    def before(self, text: ProtectedText) -> tuple[list[ProtectedText], Recase | None]:
        """Return the text in sentence case, and what puts the translation in the text's case."""
        if case := unusual_case(text.text):
            keep = [*names(text.text, case, self.knows), *self.terms(text.text)]
            text = text._replace(text=sentence_case(text.text, keep))
        return [text], case

    def _spans(self, text: str) -> list[tuple[int, int]]:
        return [match.span() for match in self.pattern.finditer(text)] if self.pattern else []

    def given(self, text: str, case: Recase | None) -> str:
        """Return a given translation in sentence case if it is in the case of its source."""
        spans = self._spans(text)
        if case and recase_outside(text, case, spans) == text:
            text = sentence_case(text, [*names(text, case, self.knows), *spans])
        return text

    def after(self, texts: Sequence[str], case: Recase | None) -> str:
        """Return the translation in the case of the text."""
        [text] = texts
        return recase_outside(text, case, self._spans(text)) if case else text


def title_case(text: str) -> str:
    """Return a text with a capital at the start of each word."""
    return _WORD_START.sub(lambda match: match.group().upper(), text)


def sentence_case(text: str, keep: Ranges = ()) -> str:
    """Return a text in lower case, with a capital at the start of each sentence.

    keep: parts that stay as they are.
    """
    lower = recase_outside(text, str.lower, keep)
    return _START.sub(lambda match: match.group().upper(), lower)


def unusual_case(text: str) -> Recase | None:
    """Return what puts a translation in the case of a text in UPPER or Title Case, else None."""
    if text.isupper() and len(_WORDS.findall(text)) > 1:
        return str.upper
    return title_case if _is_title(text) else None


def _is_title(text: str) -> bool:
    """Return whether all words start with a capital. A dash between words is a menu's."""
    words = text.split()
    return len(words) >= _MIN_TITLE and all(
        match and (match[0].isupper() or not match[0].isalpha())
        for match in map(_FIRST.search, words)
    )


def names(text: str, case: Recase, knows: Callable[[str], bool]) -> list[tuple[int, int]]:
    """Return the ranges of words in a text that have no lower case, such as USB.

    In UPPER CASE, these are words that a vocabulary knows in capitals only; in Title Case, words
    with a capital inside. case: case of the text. knows: whether the vocabulary has a word.
    """

    def is_name(word: str) -> bool:
        if case is str.upper:
            return knows(word) and not knows(word.lower())
        return not word[1:].islower()

    return [match.span() for match in _WORDS.finditer(text) if is_name(match[0])]


def recase_outside(text: str, recase: Recase, keep: Ranges) -> str:
    """Return a text in another case, except for some parts of it."""
    parts, done = [], 0
    for start, end in sorted(keep):
        parts += [recase(text[done:start]), text[max(start, done) : end]]
        done = max(done, end)
    return "".join([*parts, recase(text[done:])])
