"""Protected spans in translations: checked after the search, and repaired by alignment."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from seq2seq.config import DecodingConfig
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.alignment import piece_starts
from seq2seq.decoding.engine import Engine
from seq2seq.decoding.segments import Segment

SPANS = "protected spans: %d, lost or repeated and then repaired: %d"
"""Message about the spans of all translations."""


def restore_spans(
    engine: Engine,
    segments: Sequence[Segment],
    decoding: DecodingConfig,
    pattern: re.Pattern[str],
    tokenizer: Tokenizer,
) -> None:
    """Put the protected spans into the translations of segments.

    A model without reserved symbols reads and writes the spans as text. A span that is missing is
    inserted where the model attends to it most, a repeated one is removed.
    """
    found = [(s, x) for s in segments if s.masked.spans for x in s.hypotheses]
    source, target = tokenizer.translation_vocabularies
    broken = []
    for segment, hypothesis in found:
        text, num_removed = _mask(segment, hypothesis.text, pattern)
        lost = segment.masked.lost(text)
        num_removed += len(text) - len(segment.masked.clean(text))
        hypothesis.num_repaired = len(lost) + num_removed
        if lost and hypothesis.pieces:
            broken.append((segment, hypothesis, lost))
    attention = engine.attention([(s.source, x.pieces) for s, x, _ in broken], decoding)
    for (segment, hypothesis, lost), weights in zip(broken, attention, strict=True):
        columns = piece_starts(segment.source_text, segment.source, source)
        rows = piece_starts(hypothesis.text, hypothesis.pieces, target)
        hypothesis.text = _insert(segment, hypothesis.text, lost, weights, columns, rows)
    for segment, hypothesis in found:
        masked, (text, _) = segment.masked, _mask(segment, hypothesis.text, pattern)
        missing = [masked.spans[i][0] for i in masked.lost(text)]  # of an empty translation
        text = " ".join([text, *missing]).strip()
        if hypothesis.num_repaired:
            text = " ".join(masked.clean(text).split())
        restored = masked.restore(text)
        if hypothesis.num_repaired:
            new = masked.mask(restored, pattern) if segment.has_symbols else restored
            [hypothesis.pieces] = target.encode_pieces([new])
            hypothesis.log_probs = ()
        hypothesis.text = restored


def _mask(segment: Segment, text: str, pattern: re.Pattern[str]) -> tuple[str, int]:
    """Return a translation with symbols for spans, and the number of spans that were removed.

    Spans are removed that the translation repeats. With symbols, this is left to `restore`.
    """
    if segment.has_symbols:
        return text, 0
    text = segment.masked.mask(text, pattern)
    for index in segment.masked.lost(text):  # the pattern may need other characters around a span
        symbol, span = segment.masked.spans[index]
        text = text.replace(span, symbol, 1)
    spans = {span for _, span in segment.masked.spans}
    repeated = sum(match[0] in spans for match in pattern.finditer(text))
    return pattern.sub(lambda match: "" if match[0] in spans else match[0], text), repeated


def _insert(
    segment: Segment,
    text: str,
    lost: Sequence[int],
    attention: NDArray[np.float32],
    columns: Sequence[int],
    rows: Sequence[int],
) -> str:
    """Insert the symbols of lost spans into a translation.

    lost: indices of spans. attention: (T, S). columns, rows: position of each source piece in
    `segment.source_text` and of each target piece in `text`.
    """
    edits = []
    for index in lost:
        start, end = segment.span_range(index)
        ends = [*columns[1:], len(segment.source_text)]
        own = [
            start < piece_end and begin < end
            for begin, piece_end in zip(columns, ends, strict=True)
        ]
        weights = attention[:, own].sum(axis=1)
        first = int(weights.argmax())
        last = first
        if not segment.has_symbols:  # what the model wrote instead of the span
            inside = np.array(own)[attention.argmax(axis=1)]
            while last < len(rows) and inside[last]:
                last += 1
        begin = rows[first]
        stop = rows[last] if last < len(rows) else len(text)
        around = segment.source_text[:start][-1:], segment.source_text[end:][:1]
        edits.append((begin, stop, segment.masked.spans[index][0], around))
    end = len(text)
    for begin, stop, symbol, (before, after) in sorted(edits, reverse=True):
        stop, end = min(stop, end), begin  # two spans may have the same place
        left, right = text[:begin].rstrip(), text[stop:].lstrip()
        left += "" if not left or _is_glued(before, left[-1]) else " "
        right = right if not right or _is_glued(after, right[0]) else f" {right}"
        text = f"{left}{symbol}{right}"
    return text


def _is_glued(source: str, target: str) -> bool:
    """Return whether no space is needed beside an inserted span, given the characters there."""
    return source.isalnum() or (source == target and not source.isspace())
