"""Word alignment from cross-attention, and repetitions in translations."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from seq2seq.data.vocabulary import SentencePieces

_REPETITION = re.compile(r"(.)\1{5,}|(..)\2{2,}|(.{3,}?)\3{2,}", re.DOTALL)
"""An n-gram three times in a row or more, of six letters or more in all."""
_WHITE_SPACE = re.compile(
    b"(?:" + b"|".join(c.encode() for c in map(chr, range(0x3001)) if c.isspace()) + b")+"
)
"""All white space that `str.split` splits at, in UTF-8."""


def words_of(ids: Sequence[int], token_bytes: Sequence[bytes]) -> list[int]:
    """Return the number of the word, from 0, that each token belongs to.

    Words are what `str.split` finds in the text of the tokens. White space belongs to the word
    after it.
    """
    pieces = [token_bytes[i] for i in ids]
    ends = _word_ends(b"".join(pieces))
    starts = itertools.accumulate(map(len, pieces), initial=0)
    # A token without text belongs to the word before it.
    words = [
        bisect_right(ends, start - (not piece))
        for start, piece in zip(starts, pieces, strict=False)
    ]
    return [max(0, min(word, len(ends) - 1)) for word in words]


def _word_ends(text: bytes) -> list[int]:
    """Return where the words of a text end."""
    return [gap.start() for gap in _WHITE_SPACE.finditer(text + b" ") if gap.start()]


def words_in(text: str, pieces: Sequence[str], vocabulary: SentencePieces) -> list[int]:
    """Return the number of the word of a text, as `str.split` finds them, of each of its pieces.

    Where the tokenizer normalises, other words may be in the text of its tokens: it may turn a
    zero-width space into a space, for example. The words are then encoded one by one.
    """
    token_bytes, written = vocabulary.token_bytes(), text.split()
    [ids] = vocabulary.piece_ids([pieces])
    words = words_of(ids, token_bytes)
    if not written:
        return []
    if not words or words[-1] + 1 == len(written):
        return words
    texts = (b"".join(token_bytes[i] for i in row) for row in vocabulary.encode(written))
    counts = (len(_word_ends(text)) for text in texts)
    numbers = [number for number, own in enumerate(counts) for _ in range(own)]
    return [numbers[word] if word < len(numbers) else len(written) - 1 for word in words]


def align(
    attention: NDArray[np.float32], source: Sequence[int], target: Sequence[int]
) -> list[tuple[int, int]]:
    """Link each target word to the source word that it attends to most.

    attention: (T, S). source, target: the word of each token, counted from 0. Attention is summed
    over the tokens of words.
    """
    if not source or not target:
        return []
    columns, rows = np.array(source), np.array(target)
    words = np.zeros((rows.max() + 1, columns.max() + 1))  # (target, source) words
    np.add.at(words, (rows[:, None], columns), attention[: len(rows), : len(columns)])
    return sorted((column, row) for row, column in enumerate(words.argmax(axis=1).tolist()))


def repeated(tokens: Sequence[str]) -> int:
    """Return the length of the longest n-gram that is repeated three times in a row or more.

    0 for repetitions of fewer than six tokens: `very very very` is none.
    """
    letters = {token: chr(number) for number, token in enumerate(dict.fromkeys(tokens))}
    found = _REPETITION.finditer("".join(letters[token] for token in tokens))
    return max((len(match.group()) for match in found), default=0)


def repeats_itself(source: Sequence[str], target: Sequence[str]) -> bool:
    """Return whether a translation repeats itself at twice the length that its source does."""
    length = repeated(target)
    return bool(length) and length >= 2 * repeated(source)
