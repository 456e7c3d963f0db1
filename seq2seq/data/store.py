"""Tokenised sentences on disk: Arrow files, written in a stream and read through a memory map."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import datasets
import numpy as np
import pyarrow.compute
from datasets.arrow_writer import ArrowWriter
from numpy.typing import NDArray

Ids = NDArray[np.int32]

ROWS_PER_WRITE = 10_000


class StoreWriter:
    """Writes pairs of id lists, and for development and test sets their text too."""

    def __init__(self, path: Path, *, with_text: bool = False) -> None:
        ids = datasets.Sequence(datasets.Value("int32"))
        columns: dict[str, Any] = {"source": ids, "target": ids}
        if with_text:
            columns |= {name: datasets.Value("string") for name in ("source_text", "target_text")}
        self._columns: dict[str, list[Any]] = {name: [] for name in columns}
        self._writer = ArrowWriter(path=str(path), features=datasets.Features(columns))

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType) -> None:
        if kind is None:
            self._flush()
            self._writer.finalize()
        self._writer.close()

    def add(self, *row: Any) -> None:
        """Append source ids, target ids and, where the store has them, the two texts."""
        for column, value in zip(self._columns.values(), row, strict=True):
            column.append(value)
        if len(self._columns["source"]) >= ROWS_PER_WRITE:
            self._flush()

    def _flush(self) -> None:
        if self._columns["source"]:
            self._writer.write_batch(self._columns)
        for column in self._columns.values():
            column.clear()


class Store:
    """Read access by sentence number; nothing is loaded that is not asked for."""

    def __init__(self, path: Path) -> None:
        self._dataset = datasets.Dataset.from_file(str(path)).with_format("arrow")

    def __len__(self) -> int:
        return len(self._dataset)

    @cached_property
    def source_lens(self) -> NDArray[np.int32]:
        """Tokens of each source sentence with its end symbol."""
        return self._lengths("source")

    @cached_property
    def target_lens(self) -> NDArray[np.int32]:
        """Tokens of each target sentence with its end (or start) symbol."""
        return self._lengths("target")

    def _lengths(self, column: str) -> NDArray[np.int32]:
        if not len(self):
            return np.zeros(0, dtype=np.int32)
        lengths = pyarrow.compute.list_value_length(self._dataset.data.column(column))
        return lengths.to_numpy().astype(np.int32) + 1

    def pairs(self, numbers: NDArray[np.int64]) -> tuple[list[Ids], list[Ids]]:
        """Return the source and the target ids of these sentences, without special symbols."""
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
    lists = column.combine_chunks()  # rows from here and there come as a chunk each
    offsets: Sequence[int] = lists.offsets.to_numpy().tolist()
    values: Ids = lists.values.to_numpy()
    return [values[start:end] for start, end in pairwise(offsets)]
