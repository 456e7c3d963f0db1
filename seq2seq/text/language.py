"""Languages: names, identification, words and sentences."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from textwrap import shorten
from typing import Any

from seq2seq.text.protect import ProtectedText

_WHITE_SPACE = re.compile(r"[^\S\r\n]")
_SENTENCE_END = re.compile(r"(?<=[.!?;:。！？])\s+|(?<=[。！？])")
_SPACE = re.compile(r"\s+")

_RANGES = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    r"\u4e00-\u9fff\uf900-\ufaff"
)
UNSPACED = re.compile(f"[{_RANGES}]")
"""Scripts without spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""
_WORDS = re.compile(rf"(?:[{_RANGES}]|[^\s{_RANGES}]+)\s*")

TOKENS = re.compile(rf"[{_RANGES}]|[^\W{_RANGES}]+|[^\w\s]")
"""Words and punctuation marks."""
IDENTIFIED = 1_000
"""Number of characters from which a language is identified."""
FOREIGN_RATIO = 30
"""A text is foreign if another language is this many times as probable as the expected one."""


def words(text: str) -> list[str]:
    """Split a text into words, including the white space after each word.

    In scripts without spaces between words, each character is a word.
    """
    return _WORDS.findall(text)


def language_name(code: str) -> str:
    """Return the English name of a language code, or the code itself if it is unknown."""
    from babel import Locale, UnknownLocaleError

    base = base_code(code)
    try:
        return Locale.parse("_".join([base, *re.split("[-_]", code)[1:]])).english_name or code
    except (UnknownLocaleError, ValueError):
        return str(Locale("en").languages.get(base, code))


@cache
def base_code(language: str) -> str:
    """Return the ISO 639-1 code of a language, or its own without script and region."""
    from babel.core import get_global  # here: most translations do not need it

    code = re.split("[-_]", language.lower())[0]
    alias: str = get_global("language_aliases").get(code, code)
    return alias.split("_")[0]


def listed(languages: Iterable[str]) -> str:
    """Return the names of languages for a message; not all if they are many."""
    text = ", ".join(filter(None, languages)) or "a language without a name"
    return shorten(text, 100, placeholder=" ...")


def unknown_language(language: str, known: Iterable[str]) -> str:
    """Return the languages of a model and the one that it lacks, for a message."""
    known = list(known)
    nearest = [name for name in known if base_code(name) == base_code(language)]
    hint = f" (nearest: {listed(nearest)})" if nearest else ""
    return f"{listed(known)}, not {language!r}{hint}"


@cache
def language_identifier() -> Any:
    """Load py3langid's model."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def is_foreign(text: str, language: str) -> bool:
    """Return whether another language is much more probable than the expected one (py3langid)."""
    identifier, code = language_identifier(), base_code(language)
    identified, probability = identifier.classify(text)
    return identified != code and probability >= FOREIGN_RATIO * dict(identifier.rank(text))[code]


def identify(text: str, languages: Sequence[str]) -> str:
    """Return the most probable language of a text, of one or more possible ones."""
    if len(languages) == 1:
        return languages[0]
    scores = dict(language_identifier().rank(text[:IDENTIFIED]))
    return max(languages, key=lambda code: scores.get(base_code(code), 0.0))


@dataclass(frozen=True)
class Sentences:
    """Stage: a text is split into sentences."""

    languages: Sequence[str]
    """ISO codes of the possible languages of a text."""
    max_len: int | None = None
    """Maximum number of tokens of a sentence; longer ones are split. None: no maximum."""
    count: Callable[[Sequence[ProtectedText]], Sequence[int]] = lambda texts: []
    """Returns the number of tokens of each text."""

    def before(self, text: ProtectedText) -> tuple[list[ProtectedText], list[str]]:
        """Return the sentences, and their separators."""
        parts = list(self._split(text))
        return parts, [part.separator for part in parts]

    def _split(self, text: ProtectedText) -> Iterator[ProtectedText]:
        parts: list[ProtectedText] = []
        num_spans = 0
        language = identify(text.text, self.languages)
        for space, sentence in sentences(text.text, language):
            parts.append(text.part(sentence, num_spans, space if parts else text.separator + space))
            num_spans += len(parts[-1].spans)
        if self.max_len is None:
            yield from parts
            return
        for part, length in zip(parts, self.count(parts), strict=True):
            if length <= self.max_len or len(part.text) == 1:
                yield part
                continue
            start, end = middle(part.text)
            first = part.part(part.text[:start], 0, part.separator)
            yield from self._split(first)
            yield from self._split(
                part.part(part.text[end:], len(first.spans), part.text[start:end])
            )

    def given(self, text: str, separators: Sequence[str]) -> str:
        """Return a given translation as it is: the text must have one sentence."""
        return text

    def after(self, texts: Sequence[str], separators: Sequence[str]) -> str:
        """Return the joined translations of the sentences."""
        return "".join(chain.from_iterable(zip(separators, texts, strict=True)))


def sentences(text: str, language: str) -> list[tuple[str, str]]:
    """Return the sentences of a text, each with the white space before it.

    language: ISO code; sentencex uses the rules of English for languages that it does not know.
    """
    import sentencex  # here: most commands do not need it

    # Two letters are a code of sentencex already; for `base_code`, babel takes 20 ms to load.
    code = language.lower() if len(language) == 2 else base_code(language)
    # sentencex panics at a capital, a no-break space and a full stop.
    plain = _WHITE_SPACE.sub(" ", text)
    result, end = [], 0
    for sentence in filter(None, map(str.strip, sentencex.segment(code, plain))):
        start = plain.index(sentence, end)
        space, end = text[end:start], start + len(sentence)
        result.append((space, text[start:end]))
    return result


def middle(text: str) -> tuple[int, int]:
    """Return start and end of the space near the middle of a text where it can be split.

    It follows a punctuation mark in the middle half, else is any space, else empty.
    """
    middle = len(text) / 2
    for pattern, max_distance in ((_SENTENCE_END, len(text) / 4), (_SPACE, middle)):
        spans = [match.span() for match in pattern.finditer(text, 1, len(text) - 1)]
        start, end = min(spans, key=lambda span: abs(span[0] - middle), default=(0, 0))
        if start and abs(start - middle) <= max_distance:
            return start, end
    return int(middle), int(middle)
