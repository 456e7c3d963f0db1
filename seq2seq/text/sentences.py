"""Split text into sentences with sentencex (https://github.com/wikimedia/sentencex)."""

from __future__ import annotations


def sentences(text: str, language: str) -> list[tuple[str, str]]:
    """Return the sentences of a text, each with the white space before it.

    language: ISO code; sentencex uses the rules of English for languages that it does not know.
    """
    import sentencex  # here: most commands do not need it

    result, end = [], 0
    for sentence in filter(None, map(str.strip, sentencex.segment(language, text))):
        start = text.index(sentence, end)
        result.append((text[end:start], sentence))
        end = start + len(sentence)
    return result
