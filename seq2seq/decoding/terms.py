"""Terms that must or must not appear in a translation, and glossaries of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from unicodedata import category

from seq2seq.data.lines import read_file
from seq2seq.data.words import UNSPACED
from seq2seq.errors import UserError


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
    def words(self) -> WholeWords:
        """Finds the term in a text."""
        return WholeWords(self.text, re.escape(self.text))

    def awaits_end(self, text: str) -> bool:
        """Return whether a text ends with the term, and the term ends unless a word continues."""
        if not is_bound(self.text[-1]):
            return False
        return any(match.end() == len(text) for match in self.words.finditer(text))

    def appears(self, before: str, after: str, *, ended: bool = False) -> bool:
        """Return whether a text contains the term, but did not yet `before`.

        At its end the term does not count, as a word may continue there, unless the text has ended.
        """
        bound = is_bound(self.text[-1])
        return any(
            match.end() > len(before) or (match.end() == len(before) and bound and not ended)
            for match in self.words.finditer(after)
            if match.end() < len(after) or ended or not bound
        )

    def kept(self, translation: str) -> bool:
        """Return whether a translation contains the term, or does not contain a forbidden one."""
        return bool(self.words.search(translation)) == self.required


class WholeWords:
    """Finds a text as whole words, in scripts with spaces between words."""

    def __init__(self, text: str, pattern: str, flags: int = 0) -> None:
        self._pattern = re.compile(pattern, flags)
        self._bounds = is_bound(text[0]), is_bound(text[-1])

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        """Yield all matches that do not overlap."""
        position = 0
        while match := self._pattern.search(text, position):
            start, end = match.span()
            around = text[start - 1 : start] if start else "", text[end : end + 1]
            inside = [bound and is_word(c) for bound, c in zip(self._bounds, around, strict=True)]
            position = start + 1 if any(inside) else end
            if not any(inside):
                yield match

    def search(self, text: str) -> re.Match[str] | None:
        """Return the first match."""
        return next(self.finditer(text), None)


def source_words(source: str) -> WholeWords:
    """Return what finds the source side of a term; in lower case it matches any case.

    Its words may be separated by any white space.
    """
    pattern = r"\s+".join(re.escape(word) for word in source.split())
    return WholeWords(source, pattern, re.IGNORECASE if source == source.lower() else 0)


def is_word(character: str) -> bool:
    r"""Return whether a character is a part of words: \w, or a mark such as an accent."""
    return bool(re.match(r"\w", character)) or (
        character != "" and category(character) in ("Mn", "Mc")
    )


def is_bound(letter: str) -> bool:
    """Return whether a word that starts or ends with a letter has to start or end there."""
    return is_word(letter) and not UNSPACED.match(letter)


def contradiction(terms: Sequence[Term]) -> str | None:
    """Return why no translation can keep all terms; None if nothing shows that."""
    for required in (term for term in terms if term.required):
        for term in terms:
            if not term.required and term.words.search(required.text):
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
        self._sources = [(source, source_words(source)) for source in longest_first]

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
        for source, words in self._sources:
            spans = [match.span() for match in words.finditer(text)]
            free = [
                s for s in spans if not any(s[0] < end and begin < s[1] for begin, end in taken)
            ]
            if free:
                found += self._terms[source]
                taken += free
        return found
