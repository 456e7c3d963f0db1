"""Maximum lengths of translations, and batches of similar length."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from seq2seq.config import DecodingConfig

SENTENCES = 32
"""Maximum number of sentences in a batch on a CPU: more are no faster, and end later."""


def max_target_tokens(source_len: int, needed: int, decoding: DecodingConfig, limit: int) -> int:
    """Return the maximum number of tokens of a translation, with the end symbol.

    needed: number of tokens of its prefix and terms. limit: the model's number of positions.
    """
    # 0.29 * 100 is 28.999999999999996.
    length = math.floor(decoding.max_factor * source_len + 1e-9) + decoding.max_extra
    return min(max(length, decoding.min_length, needed) + 1, limit)


def batches(lens: Sequence[int], batch_tokens: int, most: int | None) -> Iterator[list[int]]:
    """Yield batches of indices, longest first, of at most `batch_tokens` tokens with padding.

    most: maximum number of indices.
    """
    batch: list[int] = []
    for index in sorted(range(len(lens)), key=lambda index: -lens[index]):
        full = len(batch) == most
        if batch and (full or (len(batch) + 1) * lens[batch[0]] > batch_tokens):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
