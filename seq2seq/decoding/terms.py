"""Terms that must appear in a translation, and glossaries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unicodedata import category

from seq2seq.data.lines import read_file
from seq2seq.errors import UserError
from seq2seq.text.language import UNSPACED


@dataclass(frozen=True)
class Term:
    """A word or phrase that must appear in a translation, as whole words."""

    text: str
    source: str = ""
    """Source side of a glossary entry."""
    tokens: tuple[int, ...] = ()
    """Token ids of the text, set by `Encoder`."""

    def kept(self, translation: str) -> bool:
        """Return whether a translation contains the term."""
        return any(find_words(re.compile(re.escape(self.text)), translation))


def find_words(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, int]]:
    """Yield the span of each match at word boundaries (anywhere in scripts without spaces)."""
    position = 0
    while match := pattern.search(text, position):
        start, end = match.span()
        if _inside_word(text, start) or _inside_word(text, end):
            position = start + 1
        else:
            position = end
            yield start, end


def _inside_word(text: str, position: int) -> bool:
    neighbours = text[position - 1 : position], text[position : position + 1]
    return all(is_word(c) and not UNSPACED.match(c) for c in neighbours)


def is_word(character: str) -> bool:
    """Return whether a character is a letter, a number, an underscore, or a mark (an accent)."""
    return character == "_" or (character != "" and category(character)[0] in "LNM")


class Glossary:
    """Terms for all lines that contain their source side.

    A source side in lower case matches any case. Other source sides are case-sensitive. If matches
    overlap, the longest source side applies.
    """

    def __init__(self, terms: Iterable[Term]) -> None:
        terms = list(terms)
        if not all(term.source.strip() and term.text.strip() for term in terms):
            raise UserError("a term of a glossary needs a source and a translation")
        longest_first = sorted(set(terms), key=lambda term: (-len(term.source), term.source))
        self._terms = [(term, _source_pattern(term.source)) for term in longest_first]

    @classmethod
    def load(cls, path: str | Path) -> Glossary:
        """Load a glossary from a file of `source<TAB>target` lines."""
        terms: dict[str, Term] = {}
        for number, line in enumerate(read_file(Path(path)), start=1):
            if not line.strip():
                continue
            source, *targets = (" ".join(column.split()) for column in line.split("\t"))
            if not source or len(targets) != 1 or not targets[0]:
                raise UserError(f"{path}, line {number}: {line!r} is not source<TAB>target")
            term = Term(targets[0], source)
            if terms.setdefault(source, term) != term:
                raise UserError(f"{path}, line {number}: {source!r} has two translations")
        return cls(terms.values())

    def terms(self, text: str) -> dict[Term, list[tuple[int, int]]]:
        """Return the terms for a source text, and the ranges of their source sides."""
        found = {}
        for term, pattern in self._terms:
            if ranges := list(find_words(pattern, text)):
                found[term] = ranges
            for start, end in ranges:  # what one term matches is not for others
                text = text[:start] + "\0" * (end - start) + text[end:]
        return found

    def case_sensitive(self, text: str) -> list[tuple[int, int]]:
        """Return the ranges of the source sides in a text that are case-sensitive."""
        found = self.terms(text).items()
        return [x for term, ranges in found if term.source != term.source.lower() for x in ranges]


def _source_pattern(source: str) -> re.Pattern[str]:
    """Return the pattern of a source side. Any white space may separate its words."""
    pattern = r"\s+".join(re.escape(word) for word in source.split())
    return re.compile(pattern, re.IGNORECASE if source == source.lower() else 0)
