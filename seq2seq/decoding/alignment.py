"""Word alignment by cross-attention, and detection of repetitions."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from seq2seq.data.vocabulary import SentencePieces

WORDS = re.compile(r"\S+")
"""Words of the alignments that users see, as of `str.split`."""
_REPETITION = re.compile(r"(.)\1{5,}|(..)\2{2,}|(.{3,}?)\3{2,}", re.DOTALL)
"""N-gram at least three times in a row, with at least six characters in total."""


def piece_starts(text: str, pieces: Sequence[str], vocabulary: SentencePieces) -> list[int]:
    """Return the position in a text of each of its pieces."""
    own_pieces, starts = vocabulary.piece_starts(text)
    if own_pieces != pieces:  # the search found another segmentation
        beginnings = vocabulary.decode_pieces([pieces[:i] for i in range(len(pieces))])
        # A beginning may end in an incomplete character, decoded as U+FFFD.
        starts = [len(x if text.startswith(x) else x.rstrip("\ufffd")) for x in beginnings]
    return starts


def piece_words(
    text: str,
    pieces: Sequence[str],
    vocabulary: SentencePieces,
    *,
    words: re.Pattern[str] = WORDS,
    restore: Callable[[str], str] | None = None,
) -> list[int]:
    """Return the word index, from 0, of each piece of a text.

    words: pattern of a word. restore: replaces symbols in the text by protected spans; the words
    are then words of the resulting text.
    """
    starts = piece_starts(text, pieces, vocabulary)
    if restore:
        starts, text = [len(restore(text[:start])) for start in starts], restore(text)
    ends = [word.end() for word in words.finditer(text)]
    return [min(bisect_right(ends, start), len(ends) - 1) for start in starts if ends]


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


def join_alignments(
    separators: Sequence[str],
    sources: Sequence[str],
    targets: Sequence[str],
    alignments: Sequence[Sequence[tuple[int, int]]],
    words: re.Pattern[str],
) -> list[tuple[int, int]]:
    """Return the word alignment of a text, joined from the alignments of its parts."""
    firsts = (first_words(separators, texts, words) for texts in (sources, targets))
    shifted = zip(alignments, *firsts, strict=True)
    return list(dict.fromkeys((i + i0, j + j0) for part, i0, j0 in shifted for i, j in part))


def first_words(
    separators: Sequence[str], texts: Sequence[str], words: re.Pattern[str]
) -> list[int]:
    """Return the index of the first word of each text in the joined texts.

    The first word of a text may continue the last word of the text before it.
    """
    parts = [part for pair in zip(separators, texts, strict=True) for part in pair]
    ends = [word.end() for word in words.finditer("".join(parts))]
    return [bisect_right(ends, start) for start in list(accumulate(map(len, parts)))[::2]]


def longest_run(tokens: Sequence[str]) -> int:
    """Return the length in tokens of the longest run of an n-gram.

    A run is an n-gram at least three times in a row, with at least six tokens in total. Returns 0
    if there is no run.
    """
    distinct = dict.fromkeys(tokens)
    if len(tokens) - len(distinct) < 4:  # the shortest run, two tokens three times, repeats four
        return 0
    characters = {token: chr(number) for number, token in enumerate(distinct)}
    runs = _REPETITION.finditer("".join(characters[token] for token in tokens))
    return max((len(run.group()) for run in runs), default=0)


def repeats_itself(source: Sequence[str], target: Sequence[str]) -> bool:
    """Return whether a translation has a repetition at least twice as long as the source's."""
    length = longest_run(target)
    return bool(length) and length >= 2 * longest_run(source)
