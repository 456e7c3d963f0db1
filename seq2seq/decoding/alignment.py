"""Word alignment by cross-attention, and detection of repetitions."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from seq2seq.data.vocabulary import SentencePieces

_REPETITION = re.compile(r"(.)\1{5,}|(..)\2{2,}|(.{3,}?)\3{2,}", re.DOTALL)
"""N-gram at least three times in a row, with at least six characters in total."""
_WHITE_SPACE = re.compile(
    b"(?:" + b"|".join(c.encode() for c in map(chr, range(0x3001)) if c.isspace()) + b")+"
)
"""White space at which `str.split` splits, in UTF-8."""


def token_words(ids: Sequence[int], token_bytes: Sequence[bytes]) -> list[int]:
    """Return the word index, from 0, of each token.

    Words are defined by `str.split` on the text of the tokens. White space belongs to the word
    after it.
    """
    pieces = [token_bytes[i] for i in ids]
    ends = _word_ends(b"".join(pieces))
    starts = itertools.accumulate(map(len, pieces), initial=0)
    # An empty token belongs to the word before it.
    words = [
        bisect_right(ends, start - (not piece))
        for start, piece in zip(starts, pieces, strict=False)
    ]
    return [max(0, min(word, len(ends) - 1)) for word in words]


def _word_ends(text: bytes) -> list[int]:
    """Return the end positions of the words of a text, in bytes."""
    return [gap.start() for gap in _WHITE_SPACE.finditer(text + b" ") if gap.start()]


def piece_words(text: str, pieces: Sequence[str], vocabulary: SentencePieces) -> list[int]:
    """Return the word index, from 0, of each piece of a text. `str.split` defines the words.

    A tokenizer may normalise a text to a different number of words, for example by turning a
    zero-width space into a space. In this case the words are encoded separately.
    """
    token_bytes, words = vocabulary.token_bytes, text.split()
    [ids] = vocabulary.piece_ids([pieces])
    indices = token_words(ids, token_bytes)
    if not words:
        return []
    if not indices or indices[-1] + 1 == len(words):
        return indices
    texts = (b"".join(token_bytes[i] for i in word) for word in vocabulary.encode(words))
    counts = (len(_word_ends(text)) for text in texts)
    word_of = [word for word, count in enumerate(counts) for _ in range(count)]
    return [word_of[i] if i < len(word_of) else len(words) - 1 for i in indices]


def align(
    attention: NDArray[np.float32], source: Sequence[int], target: Sequence[int]
) -> list[tuple[int, int]]:
    """Link each target word to the source word that it attends to most.

    attention: (T, S). source, target: word index of each token. Attention weights are summed over
    the tokens of a word. Returns pairs (source word, target word).
    """
    if not source or not target:
        return []
    columns, rows = np.array(source), np.array(target)
    words = np.zeros((rows.max() + 1, columns.max() + 1))  # (target, source) words
    np.add.at(words, (rows[:, None], columns), attention[: len(rows), : len(columns)])
    return sorted((column, row) for row, column in enumerate(words.argmax(axis=1).tolist()))


def longest_run(tokens: Sequence[str]) -> int:
    """Return the length in tokens of the longest run of an n-gram.

    A run is an n-gram at least three times in a row, with at least six tokens in total. Returns 0
    if there is no run.
    """
    characters = {token: chr(number) for number, token in enumerate(dict.fromkeys(tokens))}
    runs = _REPETITION.finditer("".join(characters[token] for token in tokens))
    return max((len(run.group()) for run in runs), default=0)


def repeats_itself(source: Sequence[str], target: Sequence[str]) -> bool:
    """Return whether a translation has a repetition at least twice as long as the source's."""
    length = longest_run(target)
    return bool(length) and length >= 2 * longest_run(source)
