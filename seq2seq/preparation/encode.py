"""Encode pairs and write their token ids to a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

from seq2seq.data.store import write_store
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.preparation.corpora import TextPair

BATCH_SIZE = 2_000
"""Number of sentences encoded at once."""


def encode_pairs(
    file: Path,
    pairs: Sequence[TextPair],
    tokenizer: Tokenizer,
    *,
    max_len: int | None = None,
    with_text: bool = False,
) -> list[int]:
    """Write pairs to a store, without those of which a side has more than `max_len` tokens.

    Returns the indices of these. with_text: for development and test sets.
    """
    too_long: list[int] = []

    def batches() -> Iterator[Sequence[Sequence[Any]]]:
        for start in range(0, len(pairs), BATCH_SIZE):
            sources, targets = zip(*pairs[start : start + BATCH_SIZE], strict=True)
            ids = tokenizer.source.encode(sources), tokenizer.target.encode(targets)
            fits = [max_len is None or max(map(len, pair)) <= max_len
                    for pair in zip(*ids, strict=True)]  # fmt: skip
            too_long.extend(start + i for i, fit in enumerate(fits) if not fit)
            columns = (*ids, sources, targets) if with_text else ids
            yield [list(compress(column, fits)) for column in columns]

    write_store(file, batches(), with_text=with_text)
    return too_long
