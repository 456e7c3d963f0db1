"""Split text into sentences with sentencex (https://github.com/wikimedia/sentencex)."""

from __future__ import annotations

import re

_WHITE_SPACE = re.compile(r"[^\S\r\n]")


def sentences(text: str, language: str) -> list[tuple[str, str]]:
    """Return the sentences of a text, each with the white space before it.

    language: ISO code; sentencex uses the rules of English for languages that it does not know.
    """
    import sentencex  # here: most commands do not need it

    # sentencex panics at a capital, a no-break space and a full stop.
    plain = _WHITE_SPACE.sub(" ", text)
    result, end = [], 0
    for sentence in filter(None, map(str.strip, sentencex.segment(language, plain))):
        start = plain.index(sentence, end)
        space, end = text[end:start], start + len(sentence)
        result.append((space, text[start:end]))
    return result
