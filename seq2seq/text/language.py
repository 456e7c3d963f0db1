"""Languages: names, identification, and words."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

_RANGES = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    r"\u4e00-\u9fff\uf900-\ufaff"
)
UNSPACED = re.compile(f"[{_RANGES}]")
"""Scripts without spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""
_WORDS = re.compile(rf"(?:[{_RANGES}]|[^\s{_RANGES}]+)\s*")

TOKENS = re.compile(rf"[{_RANGES}]|[^\W{_RANGES}]+|[^\w\s]")
"""Words and punctuation marks."""
MIN_CONFIDENCE = 0.9
"""Minimum probability to assign a text to another language. Short texts rarely reach it."""


def words(text: str) -> list[str]:
    """Split a text into words, including the white space after each word.

    In scripts without spaces between words, each character is a word.
    """
    return _WORDS.findall(text)


def language_name(code: str) -> str:
    """Return the English name of a language code, or the code itself if it is unknown."""
    from babel import Locale, UnknownLocaleError

    try:
        return Locale.parse(code.replace("-", "_")).english_name or code
    except (UnknownLocaleError, ValueError):
        return code


@cache
def language_identifier() -> Any:
    """Load py3langid's model."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def is_foreign(text: str, language: str) -> bool:
    """Return whether py3langid confidently assigns a text to another language."""
    identified, probability = language_identifier().classify(text)
    return identified != language and probability >= MIN_CONFIDENCE
