"""Blocks of text with inline markup, such as a paragraph with bold words and links.

A block's text is translated without its markup. Each element is then put around the words of the
translation that are aligned to its words in the source (cf. Zenkel et al. 2021).
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from seq2seq.text.language import TOKENS

Links = Sequence[tuple[int, int]]
"""Pairs of a source word and the target word that is aligned to it."""
MAX_DEPTH = 100
"""Depth of the elements in a block. Elements nested deeper stay as they are."""


class Token(NamedTuple):
    """A piece of a document: all pieces together are the document."""

    kind: str
    """`text`; `open` and `close` of an element; `other`, such as a comment; `keep`: an element
    with content that is not translated."""
    raw: str
    """Characters of the document."""
    text: str = ""
    """Decoded characters of `text` and `keep`."""
    name: str = ""
    """Name of the element."""


@dataclass
class Element:
    """Inline markup around a part of the text. It may be empty, such as an image."""

    before: str
    """Markup before the content."""
    start: int
    """Position of the content in the block's text."""
    end: int
    after: str = ""
    """Markup after the content."""
    children: list[Element] = field(default_factory=list)
    is_kept: bool = False
    """Whether `before` has the content, too, instead of its translation."""


class Block:
    """Text that is translated as a whole."""

    def __init__(
        self,
        tokens: Sequence[Token],
        escape: Callable[[str], str] = str,
        lay_out: Callable[[str], str] = str,
    ) -> None:
        """escape: encodes text for the document. lay_out: breaks the translation into lines."""
        self.escape, self.lay_out = escape, lay_out
        pairs = matching(tokens)
        first, last = _inner(tokens, pairs)
        self.raw = "".join(token.raw for token in tokens)
        self.before = "".join(token.raw for token in tokens[:first])
        self.after = "".join(token.raw for token in tokens[last:])
        text, self.elements = "", list[Element]()
        open_elements: list[Element] = []
        while first < last:
            token, stop = tokens[first], first + 1
            is_open = token.kind == "open" and first in pairs
            if is_open and len(open_elements) == MAX_DEPTH:
                stop, is_open = pairs[first] + 1, False
                token = kept(tokens[first:stop])
            start, end = len(text), len(text) + len(token.text)
            if token.kind == "close" and first in pairs:
                element = open_elements.pop()
                element.end, element.after = start, token.raw
            elif token.kind != "text":
                element = Element(token.raw, start, end, is_kept=token.kind == "keep")
                (open_elements[-1].children if open_elements else self.elements).append(element)
                if is_open:
                    open_elements.append(element)
            text += token.text
            first = stop
        self.text = text

    def place(self, translation: str, links: Links, words: re.Pattern[str] = TOKENS) -> str:
        """Return the translation with the markup of the block. links: by `words`.

        A translation that is the text itself leaves the block as it is.
        """
        text, bare, translation = self.text, self.text.strip(), translation.strip()
        if translation == bare:
            return self.raw
        start = text.find(bare)
        content = self.escape(translation)
        if self.elements:
            content = _Placement(self, translation, links, words).result
        before, after = self.before + text[:start], text[start + len(bare) :] + self.after
        return self.lay_out(f"{before}{content}{after}")


def matching(tokens: Sequence[Token]) -> dict[int, int]:
    """Return the index of the partner of each opening and closing token that has one."""
    pairs: dict[int, int] = {}
    stack: list[int] = []
    names = Counter[str]()  # in the stack
    for i, token in enumerate(tokens):
        if token.kind == "open":
            stack.append(i)
            names[token.name] += 1
        elif token.kind == "close" and names[token.name]:
            while tokens[j := stack.pop()].name != token.name:
                names[tokens[j].name] -= 1
            names[token.name] -= 1
            pairs |= {i: j, j: i}
    return pairs


def kept(tokens: Sequence[Token]) -> Token:
    """Return an element whose content is not translated as one token."""
    text = "".join(token.text for token in tokens)
    return Token("keep", "".join(token.raw for token in tokens), text)


def _inner(tokens: Sequence[Token], pairs: dict[int, int]) -> tuple[int, int]:
    """Return the range of tokens without spaces and markup at the ends, which stay there."""
    first, last = 0, len(tokens)

    def stays(i: int) -> bool:
        token = tokens[i]
        if token.kind == "text":
            return not token.text.strip()
        return token.kind == "other" or (token.kind != "keep" and i not in pairs)

    while first < last:
        if stays(first):
            first += 1
        elif stays(last - 1):
            last -= 1
        elif pairs.get(first) == first + 1:
            first += 2
        elif pairs.get(last - 1) == last - 2:
            last -= 2
        elif pairs.get(first) == last - 1:
            first, last = first + 1, last - 1
        else:
            break
    return first, last


class _Placement:
    """Puts the elements of a block into its translation."""

    def __init__(
        self, block: Block, translation: str, links: Links, words: re.Pattern[str]
    ) -> None:
        self.block, self.text = block, translation
        source_words = list(words.finditer(block.text))
        self.starts = [word.start() for word in source_words]
        self.ends = [word.end() for word in source_words]
        self.words = list(words.finditer(translation))
        self.targets = defaultdict[int, list[int]](list)  # sorted, of each source word
        for i, j in sorted(links):
            self.targets[i].append(j)
        linked = {j for _, j in links}
        self.linked = [0, *accumulate(j in linked for j in range(len(self.words)))]
        head, tail = translation, ""
        if self.words:
            head, tail = translation[: self.words[0].start()], translation[self.words[-1].end() :]
        content = self._render(block.elements, 0, len(self.words))
        self.result = block.escape(head) + content + block.escape(tail)

    def _render(self, elements: Iterable[Element], start: int, stop: int) -> str:
        """Return the words from `start` to `stop` with elements, and the spaces between words."""
        source, result, done = self.block.text, "", start
        places = sorted(
            ((*self._find(element, start, stop), element) for element in elements),
            key=lambda place: place[:2],
        )
        needs_gap = False  # whether the space before the next word has not been written yet
        for first, last, element in places:
            first = max(first, done)
            if done < first:
                result += self._words(done, first, needs_gap)
                needs_gap = True
            done = max(last, first)
            if first < done:
                gap = self._gap(first) if needs_gap else ""
                inner = "" if element.is_kept else self._render(element.children, first, done)
                result += f"{gap}{element.before}{inner}{element.after}"
                needs_gap = True
            elif source[max(0, element.start - 1) : element.start].isspace():  # as in the source
                after = source[element.end : element.end + 1] if first < stop else ""
                result += " " * needs_gap + _markup(element) + " " * after.isspace()
                needs_gap = False
            else:
                result += _markup(element)
        return result + self._words(done, stop, needs_gap)

    def _words(self, first: int, last: int, needs_gap: bool) -> str:
        if first >= last:
            return ""
        text = self.text[self.words[first].start() : self.words[last - 1].end()]
        return (self._gap(first) if needs_gap else "") + self.block.escape(text)

    def _gap(self, word: int) -> str:
        """Return the text between a word and the word before it."""
        start, end = self.words[word - 1].end(), self.words[word].start()
        return self.block.escape(self.text[start:end])

    def _find(self, element: Element, start: int, stop: int) -> tuple[int, int]:
        """Return the range of target words of an element, between `start` and `stop`.

        It is the range with the most words aligned to the element; a word aligned elsewhere counts
        -1.
        """
        inside = range(0)
        if element.start < element.end:
            first_word = bisect_right(self.ends, element.start)
            inside = range(first_word, bisect_left(self.starts, element.end))
        total, first, best, done = 0, start, (0, start, start), start
        for j in sorted({j for i in inside for j in self.targets[i] if start <= j < stop}):
            total -= self.linked[j] - self.linked[done]  # words in between
            if total <= 0:
                total, first = 0, j
            total, done = total + 1, j + 1
            if total > best[0]:
                best = total, first, done
        if best[0]:
            return best[1:]
        # Before the next source word's translation, else after the previous word's translation.
        next_word = bisect_left(self.starts, element.start)
        before, after = self.targets[next_word], self.targets[next_word - 1]
        place = before[0] if before else after[-1] + 1 if after else stop
        place = min(max(place, start), stop)
        if not inside or start == stop:
            return place, place
        place = min(place, stop - 1)  # an element with text is never empty
        return place, place + 1


def _markup(element: Element) -> str:
    """Return the markup of an element and its children, without text."""
    inner = "" if element.is_kept else "".join(map(_markup, element.children))
    return f"{element.before}{inner}{element.after}"
