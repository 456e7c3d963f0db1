"""Encode pairs and write their token ids to a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seq2seq.data.store import write_store
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.preparation.shards import Shard

BATCH_SIZE = 2_000
"""Number of sentences encoded at once."""


class Encoded(NamedTuple):
    """What was encoded."""

    too_long: NDArray[np.int64]
    """Places of pairs that were left out."""
    source_tokens: int
    """Number of tokens, with an end symbol for each pair."""
    target_tokens: int


def encode_pairs(
    file: Path,
    sources: Sequence[str],
    targets: Sequence[str],
    tokenizer: Tokenizer,
    *,
    max_len: int | None = None,
    with_text: bool = False,
) -> Encoded:
    """Write pairs to a store, without those of which a side has more than `max_len` tokens.

    with_text: for development and test sets.
    """
    too_long: list[int] = []
    tokens = [0, 0]

    def batches() -> Iterator[Sequence[Sequence[Any]]]:
        for start in range(0, len(sources), BATCH_SIZE):
            texts = [side[start : start + BATCH_SIZE] for side in (sources, targets)]
            ids = [tokenizer.source.encode(texts[0]), tokenizer.target.encode(texts[1])]
            fits = [max_len is None or max(map(len, pair)) <= max_len
                    for pair in zip(*ids, strict=True)]  # fmt: skip
            too_long.extend(start + i for i, fit in enumerate(fits) if not fit)
            columns = [list(compress(column, fits)) for column in (*ids, *texts)]
            for side in (0, 1):
                tokens[side] += len(columns[side]) + sum(map(len, columns[side]))
            yield columns if with_text else columns[:2]

    write_store(file, batches(), with_text=with_text)
    return Encoded(np.array(too_long, dtype=np.int64), *tokens)


def encode_shard(
    file: Path,
    shard: Shard,
    places: NDArray[np.int64],
    tag: str | None,
    tokenizer: Path,
    max_len: int | None,
) -> Encoded:
    """Write some pairs of a shard to a store; the result has places in the shard.

    tokenizer: its folder.
    """
    sources, targets = shard.pairs(places)
    sources = [tagged(tag, source) for source in sources]
    done = encode_pairs(file, sources, targets, _load_tokenizer(tokenizer), max_len=max_len)
    return done._replace(too_long=places[done.too_long])


@lru_cache(maxsize=1)
def _load_tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


def tagged(tag: str | None, source: str) -> str:
    """Put a corpus's tag before a source sentence."""
    return f"{tag} {source}" if tag and source.strip() else source
