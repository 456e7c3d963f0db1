"""Words and phrases that a translation must or must not contain, and glossaries of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

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

    def applies(self, text: str) -> bool:
        """Return whether the term is for a source text: a glossary's for those with its source."""
        return not self.source or bool(source_pattern(self.source).search(text))

    def kept(self, translation: str) -> bool:
        """Return whether a translation contains the term, or does not contain a forbidden one."""
        return bool(self.pattern.search(translation)) == self.required


def whole_words(text: str, *, ignore_case: bool = False) -> re.Pattern[str]:
    """Return a pattern that matches a text only as whole words."""
    start, end = (
        r"\w" if re.match(r"\w", letter) and not _UNSPACED.match(letter) else ""
        for letter in (text[0], text[-1])
    )
    pattern = re.escape(text)
    if start:
        pattern = rf"(?<!{start}){pattern}"
    if end:
        pattern = rf"{pattern}(?!{end})"
    return re.compile(pattern, re.IGNORECASE if ignore_case else 0)


def source_pattern(source: str) -> re.Pattern[str]:
    """Return a pattern for the source side of a term; in lower case it matches any case."""
    return whole_words(source, ignore_case=source == source.lower())


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
        longest_first = sorted(self._terms, key=len, reverse=True)
        self._patterns = [(source, source_pattern(source)) for source in longest_first]

    @classmethod
    def load(cls, path: Path) -> Glossary:
        """Read a file of `source<TAB>target` lines; `!target` must not appear."""
        entries = []
        for number, line in enumerate(read_file(path), start=1):
            if not line.strip():
                continue
            source, tab, target = line.partition("\t")
            source = " ".join(source.split())
            if not tab or not source or not target.removeprefix("!").strip() or "\t" in target:
                raise UserError(f"{path}, line {number}: {line!r} is not source<TAB>target")
            entries.append((source, Term.parse(target.strip())))
        return cls(entries)

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
