"""Split text into words, also in scripts without spaces between words."""

from __future__ import annotations

import re

_RANGES = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    r"\u4e00-\u9fff\uf900-\ufaff"
)
UNSPACED = re.compile(f"[{_RANGES}]")
"""Scripts without spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""
_WORDS = re.compile(rf"(?:[{_RANGES}]|[^\s{_RANGES}]+)\s*")

TOKENS = re.compile(rf"[{_RANGES}]|[^\W{_RANGES}]+|[^\w\s]")
"""Words and punctuation marks."""


def words(text: str) -> list[str]:
    """Split a text into words, including the white space after each word.

    In scripts without spaces between words, each character is a word.
    """
    return _WORDS.findall(text)
