"""Encode pairs and write their token ids to a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seq2seq.data.store import write_store
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.preparation.shards import Shard

BATCH_SIZE = 2_000
"""Number of sentences encoded at once."""


def encode_pairs(
    file: Path,
    sources: Sequence[str],
    targets: Sequence[str],
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
        for start in range(0, len(sources), BATCH_SIZE):
            texts = [side[start : start + BATCH_SIZE] for side in (sources, targets)]
            ids = [tokenizer.source.encode(texts[0]), tokenizer.target.encode(texts[1])]
            fits = [max_len is None or max(map(len, pair)) <= max_len
                    for pair in zip(*ids, strict=True)]  # fmt: skip
            too_long.extend(start + i for i, fit in enumerate(fits) if not fit)
            columns = [*ids, *texts] if with_text else ids
            yield [list(compress(column, fits)) for column in columns]

    write_store(file, batches(), with_text=with_text)
    return too_long


def encode_shard(
    file: Path,
    shard: Shard,
    indices: NDArray[np.int64],
    tag: str | None,
    tokenizer: Path,
    max_len: int | None,
) -> NDArray[np.int64]:
    """Write some pairs of a shard to a store; return the indices of those that are too long.

    tokenizer: its folder.
    """
    sources, targets = shard.pairs(indices)
    sources = [tagged(tag, source) for source in sources]
    too_long = encode_pairs(file, sources, targets, _load_tokenizer(tokenizer), max_len=max_len)
    return indices[too_long]


@lru_cache(maxsize=1)
def _load_tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


def tagged(tag: str | None, source: str) -> str:
    """Put a corpus's tag before a source sentence."""
    return f"{tag} {source}" if tag and source.strip() else source
