"""Words and phrases that a translation must or must not contain, and glossaries of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from unicodedata import category

from seq2seq.data.lines import read_file
from seq2seq.errors import UserError

_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    r"\u4e00-\u9fff\uf900-\ufaff]"
)
"""Scripts without spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""


@dataclass(frozen=True)
class Term:
    """A word or phrase that must appear in a translation, or must not."""

    text: str
    required: bool = True
    source: str = ""
    """The source side of a glossary's term."""

    @classmethod
    def parse(cls, text: str) -> Term:
        """Read a term; an exclamation mark before it means that it must not appear."""
        required = not text.startswith("!")
        term = " ".join(text.removeprefix("!").split())
        if not term:
            raise UserError(f"{text!r} is not a word or phrase")
        return cls(term, required)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches the term as whole words, in scripts with spaces between words."""
        return whole_words(self.text)

    def awaits_end(self, text: str) -> bool:
        """Return whether a text ends with the term, and the term ends unless a word continues."""
        if not _bound(self.text[-1]):
            return False
        return any(match.end() == len(text) for match in self.pattern.finditer(text))

    def appears(self, before: str, after: str, *, ended: bool = False) -> bool:
        """Return whether a text contains the term, but did not yet `before`.

        At its end the term does not count, as a word may continue there, unless the text has ended.
        """
        bound = _bound(self.text[-1])
        return any(
            match.end() > len(before) or (match.end() == len(before) and bound and not ended)
            for match in self.pattern.finditer(after)
            if match.end() < len(after) or ended or not bound
        )

    def kept(self, translation: str) -> bool:
        """Return whether a translation contains the term, or does not contain a forbidden one."""
        return bool(self.pattern.search(translation)) == self.required


def whole_words(text: str) -> re.Pattern[str]:
    """Return a pattern that matches a text only as whole words."""
    return _whole(text, re.escape(text))


def source_pattern(source: str) -> re.Pattern[str]:
    """Return a pattern for the source side of a term; in lower case it matches any case.

    Its words may be separated by any white space.
    """
    words = r"\s+".join(re.escape(word) for word in source.split())
    return _whole(source, words, re.IGNORECASE if source == source.lower() else 0)


def _whole(text: str, pattern: str, flags: int = 0) -> re.Pattern[str]:
    start = f"(?<!{word_character().pattern})" if _bound(text[0]) else ""
    end = f"(?!{word_character().pattern})" if _bound(text[-1]) else ""
    return re.compile(f"{start}{pattern}{end}", flags)


def _bound(letter: str) -> bool:
    """Return whether a word that starts or ends with a letter has to start or end there."""
    return bool(word_character().match(letter)) and not _UNSPACED.match(letter)


@cache
def word_character() -> re.Pattern[str]:
    r"""Return a pattern of the characters of words: \w, and marks such as accents and vowel signs.

    Marks are the categories Mn and Mc of Unicode.
    """
    marks = [c for c in map(chr, range(sys.maxunicode + 1)) if category(c) in ("Mn", "Mc")]
    return re.compile(rf"[\w{''.join(marks)}]")


def contradiction(terms: Sequence[Term]) -> str | None:
    """Return why no translation can keep all terms; None if nothing shows that."""
    for required in (term for term in terms if term.required):
        for term in terms:
            if not term.required and term.pattern.search(required.text):
                return f"{required.text!r} must appear, but {term.text!r} must not"
    return None


class Glossary:
    """Terms that apply to the lines in which their source side occurs.

    A source side in lower case matches any case, others match exactly. Where source sides overlap,
    the longest applies.
    """

    def __init__(self, entries: Iterable[tuple[str, Term]]) -> None:
        self._terms: dict[str, list[Term]] = {}
        for source, target in entries:
            term = replace(target, source=source)
            known = self._terms.setdefault(source, [])
            if term.required and any(other.required and other != term for other in known):
                raise UserError(f"{source!r} has two translations in the glossary; leave one out")
            known.append(term)
            if problem := contradiction(known):
                raise UserError(f"the glossary's terms for {source!r} contradict: {problem}")
        longest_first = sorted(self._terms, key=len, reverse=True)
        self._patterns = [(source, source_pattern(source)) for source in longest_first]

    @classmethod
    def load(cls, path: str | Path) -> Glossary:
        """Read a file of `source<TAB>target` lines; `!target` must not appear."""
        path, entries = Path(path), []
        for number, line in enumerate(read_file(path), start=1):
            if not line.strip():
                continue
            source, tab, target = line.partition("\t")
            source = " ".join(source.split())
            if not tab or not source or not target.removeprefix("!").strip() or "\t" in target:
                raise UserError(f"{path}, line {number}: {line!r} is not source<TAB>target")
            entries.append((source, Term.parse(target.strip())))
        try:
            return cls(entries)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    def terms(self, text: str) -> list[Term]:
        """Return the terms that apply to a source text."""
        found: list[Term] = []
        taken: list[tuple[int, int]] = []
        for source, pattern in self._patterns:
            spans = [match.span() for match in pattern.finditer(text)]
            free = [
                s for s in spans if not any(s[0] < end and begin < s[1] for begin, end in taken)
            ]
            if free:
                found += self._terms[source]
                taken += free
        return found


def kept_of(terms: Sequence[Term], translation: str) -> int:
    """Return how many terms a translation keeps."""
    return sum(term.kept(translation) for term in terms)
