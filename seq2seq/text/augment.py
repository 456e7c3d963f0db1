"""Data augmentation: sentence pairs as users type them, with typos and in lower case."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from numpy.random import Generator

from seq2seq.text.protect import PLACEHOLDERS

Pair = tuple[str, str]
Change = Callable[[Pair, Generator], Pair]
"""Returns a changed pair. All random choices are drawn from the generator."""

FINAL_PUNCTUATION = ".!?:;…。！？"
QUOTES = dict(zip("“”„‟»«‘’‚‹›–—‑−", '""""""\'\'\'\'\'----', strict=True)) | {"…": "..."}
CURLY = {'"': "”", "'": "’", "-": "–"}
KEYBOARD = "qwertyuiop", "asdfghjkl", "zxcvbnm"
NEIGHBOURS = {
    key: row[max(0, i - 1) : i] + row[i + 1 : i + 2]
    for row in KEYBOARD
    for i, key in enumerate(row)
}
"""Keys beside each letter."""
WORDS_PER_TYPO = 5
NOISE = [(0x1F300, 0x1F650), (0x2190, 0x2200), (0x2600, 0x2700), (0x3041, 0x30FF), (0x4E00, 0x9FFF)]
"""Ranges of code points: pictographs, arrows, symbols, kana, Chinese characters."""

_WORD = re.compile(r"\w+")
_LETTERS = re.compile(r"[^\W\d_]{2,}")


def lower(pair: Pair, random: Generator) -> Pair:
    """lower case, on both sides of a sentence.

    Texts without final punctuation stay: labels in lower case have translations in normal case.
    """
    if not pair[0].endswith(tuple(FINAL_PUNCTUATION)):
        return pair
    return pair[0].lower(), pair[1].lower()


def spaces(pair: Pair, random: Generator) -> Pair:
    """An extra or a missing space in the source."""
    source, target = pair
    places = [i for i, character in enumerate(source) if character == " "]
    if places and random.random() < 0.5:
        i = places[random.integers(len(places))]
        return source[:i] + source[i + 1 :], target
    i = int(random.integers(len(source) + 1))
    return f"{source[:i]} {source[i:]}", target


def typos(pair: Pair, random: Generator) -> Pair:
    """Typos in the source: a letter dropped, doubled, exchanged or replaced by a key beside it."""
    source, target = pair
    words = list(_LETTERS.finditer(source))
    if not words:
        return pair
    chosen = random.random(len(words)) < 1 / WORDS_PER_TYPO
    chosen[random.integers(len(words))] = True
    for word, hit in reversed(list(zip(words, chosen, strict=True))):
        if hit:
            i = int(random.integers(word.start(), word.end() - 1))
            a, b = source[i], source[i + 1]
            near = NEIGHBOURS.get(a, a)
            replaced = near[random.integers(len(near))] + b
            typed = (b, a + a + b, b + a, replaced)[random.integers(4)]
            source = source[:i] + typed + source[i + 2 :]
    return source, target


def quotes(pair: Pair, random: Generator) -> Pair:
    """Straight quotes and hyphens for curly quotes and dashes in the source, or the reverse."""
    source, target = pair
    mapping = QUOTES if any(character in QUOTES for character in source) else CURLY
    return "".join(mapping.get(character, character) for character in source), target


def noise(pair: Pair, random: Generator) -> Pair:
    """The same rare character, such as an emoji, at the end or beginning of both sides."""
    start, stop = NOISE[random.integers(len(NOISE))]
    character = chr(random.integers(start, stop))
    if random.random() < 0.25:
        return f"{character} {pair[0]}", f"{character} {pair[1]}"
    return f"{pair[0]} {character}", f"{pair[1]} {character}"


def copy(pair: Pair, random: Generator) -> Pair:
    """A reserved symbol for a word that occurs once on both sides."""
    source, target = pair
    once = [{word for word, n in Counter(_WORD.findall(x)).items() if n == 1} for x in pair]
    words = sorted(once[0] & once[1])
    unused = [symbol for symbol in PLACEHOLDERS if symbol not in source + target]
    if not words or not unused:
        return pair
    word = re.compile(rf"(?<!\w){re.escape(words[random.integers(len(words))])}(?!\w)")
    symbol = unused[random.integers(len(unused))]
    return word.sub(symbol, source), word.sub(symbol, target)


def join(pairs: Sequence[Pair]) -> Pair:
    """Several sentences on one line."""
    sources, targets = zip(*pairs, strict=True)
    return " ".join(sources), " ".join(targets)


CHANGES: dict[str, Change] = {
    "copy": copy,
    "quotes": quotes,
    "lower": lower,
    "spaces": spaces,
    "typos": typos,
    "noise": noise,
}
"""Changes of one pair, in the order of their application. The names are keys of `data.augment`."""
