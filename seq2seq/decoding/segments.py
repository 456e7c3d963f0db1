"""Split texts that are too long for a model, and join the translations of their parts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from seq2seq.decoding.engine import Query
from seq2seq.decoding.translation import Candidate

_SENTENCE_END = re.compile(r"(?<=[.!?;:。！？])\s+|(?<=[。！？])")
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class Segment:
    """A line, or a part of a line that is too long."""

    line: int
    text: str
    query: Query
    separator: str
    """Text between this segment and the previous one."""


def split_text(
    text: str, encode: Callable[[str], list[int]], max_len: int, separator: str = ""
) -> list[tuple[list[int], str, str]]:
    """Split a text of more than `max_len` tokens near its middle, at a sentence end or a space.

    Returns ids, text and separator before each part; nothing for a blank text.
    """
    if not text.strip():
        return []
    ids = encode(text)
    if not ids:
        return []
    if len(ids) <= max_len or len(text) == 1:
        return [(ids, text, separator)]
    middle = len(text) / 2
    for pattern, reach in ((_SENTENCE_END, len(text) / 4), (_SPACE, middle)):
        cuts = [m.span() for m in pattern.finditer(text, 1, len(text) - 1)]
        start, end = min(cuts, key=lambda span: abs(span[0] - middle), default=(0, 0))
        if start and abs(start - middle) <= reach:
            break
    else:
        start = end = int(middle)
    gap = " " if end > start else ""
    first = split_text(text[:start], encode, max_len, separator)
    return first + split_text(text[end:], encode, max_len, gap)


def joined(parts: Sequence[tuple[Segment, Sequence[Candidate]]], rank: int) -> Candidate:
    """Join the translations of the parts of a line."""
    if len(parts) == 1:
        return parts[0][1][rank]
    source, text, score, log_prob = "", "", 0.0, 0.0
    tokens: tuple[tuple[str, float], ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    for segment, candidates in parts:
        one = candidates[rank]
        source, text = (
            source + segment.separator + segment.text,
            text + segment.separator + one.text,
        )
        # Less than its own words where it continues a word of the part before it.
        i0, j0 = (
            _count(whole) - _count(own) for whole, own in ((source, segment.text), (text, one.text))
        )
        links += tuple((i + i0, j + j0) for i, j in one.alignment)
        tokens += one.tokens
        score, log_prob = score + one.score, log_prob + one.log_prob
    return Candidate(text, score, log_prob, tokens, tuple(dict.fromkeys(links)))


def _count(text: str) -> int:
    return len(text.split())
