"""Split text into sentences with sentencex (https://github.com/wikimedia/sentencex)."""

from __future__ import annotations


def sentences(text: str, language: str) -> list[tuple[str, str]]:
    """Return the sentences of a text, each with the white space before it.

    language: ISO code; sentencex uses the rules of English for languages that it does not know.
    """
    import sentencex  # here: most commands do not need it

    result, space = [], ""
    for part in sentencex.segment(language, text):
        sentence = part.strip()
        start = part.find(sentence)
        if sentence:
            result.append((space + part[:start], sentence))
            space = ""
        space += part[start + len(sentence) :] if sentence else part
    return result
