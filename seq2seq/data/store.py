"""Token ids of sentences in memory-mapped Arrow files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

from seq2seq.files import atomic_file

Ids = NDArray[np.int32]

_IDS = pyarrow.list_(pyarrow.int32())
_SIDES = [("source", _IDS), ("target", _IDS)]
_TEXTS = [("source_text", pyarrow.string()), ("target_text", pyarrow.string())]


def write_store(
    file: Path, batches: Iterable[Sequence[Sequence[Any]]], *, with_text: bool = False
) -> None:
    """Write the columns of a store: source and target ids and, for `with_text`, both texts."""
    schema = pyarrow.schema([*_SIDES, *_TEXTS] if with_text else _SIDES)
    with atomic_file(file) as sink, pyarrow.ipc.new_stream(sink, schema) as writer:
        for columns in batches:
            arrays = [
                pyarrow.array(column, field.type)
                for column, field in zip(columns, schema, strict=True)
            ]
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))


class Store:
    """Random access to the sentences of one or more files; only requested rows are read."""

    def __init__(self, paths: Sequence[Path]) -> None:
        import datasets  # takes 80 MiB, which processes that only write do not need

        parts = [datasets.Dataset.from_file(str(path)) for path in paths]
        whole = parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)
        self._dataset = whole.with_format("arrow")

    def __len__(self) -> int:
        return len(self._dataset)

    @cached_property
    def source_lens(self) -> NDArray[np.int32]:
        """Number of tokens of each source sentence, including its end symbol."""
        return self._lengths("source")

    @cached_property
    def target_lens(self) -> NDArray[np.int32]:
        """Number of tokens of each target sentence, including its end (or start) symbol."""
        return self._lengths("target")

    def _lengths(self, column: str) -> NDArray[np.int32]:
        lengths = pyarrow.compute.list_value_length(self._dataset.data.column(column))
        return lengths.to_numpy().astype(np.int32) + 1

    def pairs(self, numbers: NDArray[np.int64]) -> tuple[list[Ids], list[Ids]]:
        """Return source and target ids of these sentences, without special symbols."""
        table = self._dataset[numbers]
        return _rows(table.column("source")), _rows(table.column("target"))

    def target_counts(self) -> dict[int, int]:
        """Return how often each id occurs among the targets."""
        ids = pyarrow.compute.list_flatten(self._dataset.data.column("target"))
        counts = pyarrow.compute.value_counts(ids)
        return dict(zip(*(column.to_pylist() for column in counts.flatten()), strict=True))

    def texts(self, limit: int | None = None) -> tuple[list[str], list[str]]:
        """Return the first `limit` source and target texts of a development or test set."""
        table = self._dataset[: len(self) if limit is None else limit]
        return table.column("source_text").to_pylist(), table.column("target_text").to_pylist()


def _rows(column: Any) -> list[Ids]:
    lists = column.combine_chunks()  # scattered rows have one chunk each
    offsets: Sequence[int] = lists.offsets.to_numpy().tolist()
    values: Ids = lists.values.to_numpy()
    return [values[start:end] for start, end in pairwise(offsets)]
