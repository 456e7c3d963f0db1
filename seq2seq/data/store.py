"""Prepared data: a folder with tokenizer, manifest, and token ids in memory-mapped Arrow files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seq2seq.config import Direction
from seq2seq.data.lines import read_object_file
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError
from seq2seq.files import sha256_of

Ids = NDArray[np.int32]

SIDES = ("source", "target")


def write_store(file: Path, batches: Iterable[Sequence[Sequence[Any]]], *, with_text: bool) -> None:
    """Write batches of columns: source ids, target ids and, if `with_text`, both texts."""
    import pyarrow  # here: most commands do not need it

    fields = [(side, pyarrow.list_(pyarrow.int32())) for side in SIDES]
    if with_text:
        fields += [(f"{side}_text", pyarrow.string()) for side in SIDES]
    schema = pyarrow.schema(fields)
    with file.open("wb") as sink, pyarrow.ipc.new_stream(sink, schema) as writer:
        for columns in batches:
            named = dict(zip(schema.names, columns, strict=True))
            writer.write_batch(pyarrow.RecordBatch.from_pydict(named, schema))


class Store:
    """Random access to the sentence pairs of one or more files; reads only the requested pairs."""

    def __init__(self, paths: Sequence[Path]) -> None:
        import pyarrow

        self._paths = paths
        parts = [pyarrow.ipc.open_stream(pyarrow.memory_map(str(path))) for path in paths]
        batches = [batch for part in parts for batch in part]
        self._table = pyarrow.Table.from_batches(batches, parts[0].schema)
        self._starts = np.cumsum([0, *map(len, batches)])
        """Index of the first sentence of each record batch, and the total number of sentences."""
        lists = [[batch.column(side) for batch in batches] for side in SIDES]
        self._sides = [[(x.offsets.to_numpy(), x.values.to_numpy()) for x in ids] for ids in lists]
        """Offsets and values of the id lists of each batch, of source and target."""

    def __len__(self) -> int:
        return len(self._table)

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self._paths,)  # another process maps the files, too

    @cached_property
    def lens(self) -> list[NDArray[np.int32]]:
        """Lengths of the sources with end symbol, and of the targets with start symbol."""
        lens = [[np.diff(offsets) for offsets, _ in side] for side in self._sides]
        return [np.concatenate([*x, np.empty(0, np.int32)]).astype(np.int32) + 1 for x in lens]

    def pairs(self, indices: NDArray[np.int64]) -> tuple[list[Ids], list[Ids]]:
        """Return the source and target ids of sentences, without special symbols."""
        batches = np.searchsorted(self._starts, indices, side="right") - 1
        positions = (indices - self._starts[batches]).tolist()
        places = list(zip(batches.tolist(), positions, strict=True))
        source, target = ([_ids(side[i], place) for i, place in places] for side in self._sides)
        return source, target

    def texts(self, limit: int | None = None) -> tuple[list[str], list[str]]:
        """Return the first `limit` source and target texts of a development or test set."""
        table = self._table.slice(0, limit)
        source, target = (table.column(f"{side}_text").to_pylist() for side in SIDES)
        return source, target


def _ids(arrays: tuple[NDArray[np.int32], Ids], position: int) -> Ids:
    offsets, values = arrays
    return values[offsets[position] : offsets[position + 1]]


@dataclass(frozen=True)
class PreparedData:
    """A folder of prepared data: tokenizer, splits (`train`, `dev`, perhaps `test`) and manifest.

    A split is a store of pairs, or the token ids of a part of a text.
    """

    folder: Path
    tokenizer: Tokenizer
    manifest: dict[str, Any]

    @classmethod
    def load(cls, folder: Path, split: str | None = None) -> PreparedData:
        """Open a prepared folder and verify checksums; split: verify only this split's files."""
        manifest = read_object_file(folder / "manifest.json")
        data = cls(folder, Tokenizer.load(folder), manifest)
        changed = ["tokenizer"] if data.tokenizer.checksum != manifest["tokenizer"] else []
        for name in data.facts(split)["files"] if split else manifest["sha256"]:
            path = folder / name
            if not path.exists() or sha256_of(path) != manifest["sha256"][name]:
                changed.append(name)
        if changed:
            raise UserError(
                f"{folder}: {changed[0]} has changed; delete the folder to prepare it again"
            )
        return data

    def facts(self, split: str) -> dict[str, Any]:
        """Return the manifest entry of `train`, `dev` or `test`."""
        if split not in self.manifest["splits"]:
            raise UserError(
                f"the recipe has no {split} set: name one with data.{split} or hold one out with "
                f"data.{split}_size (data.{split}_share for a language model)"
            )
        return self.manifest["splits"][split]

    def store(self, split: str) -> Store:
        """Open the pairs of `train`, `dev` or `test`."""
        return Store([self.folder / file for file in self.facts(split)["files"]])

    def sets(self, split: str) -> dict[Direction, Store]:
        """Open the development or test set of each direction of a translation model."""
        facts = self.facts(split)
        directions = (Direction(*languages) for languages in facts["directions"])
        return {
            direction: Store([self.folder / file])
            for direction, file in zip(directions, facts["files"], strict=True)
        }

    def checksum(self, split: str) -> str:
        """Return the checksum of a split; raises UserError if it does not exist."""
        sums = [self.manifest["sha256"][file] for file in self.facts(split)["files"]]
        return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()

    def tokens(self, split: str) -> NDArray[np.unsignedinteger]:
        """Memory-map the token ids of `train`, `dev` or `test` of a text."""
        facts = self.facts(split)
        [file] = facts["files"]
        return np.memmap(self.folder / file, dtype=facts["dtype"], mode="r")
