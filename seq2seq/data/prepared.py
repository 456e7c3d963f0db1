"""Prepared data: tokenizer, splits and manifest in a folder."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seq2seq.data.json_objects import read_object_file
from seq2seq.data.store import Store
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError
from seq2seq.files import sha256_of


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

    def checksum(self, split: str) -> str:
        """Return the checksum of a split; raises UserError if it does not exist."""
        sums = [self.manifest["sha256"][file] for file in self.facts(split)["files"]]
        return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()

    def tokens(self, split: str) -> NDArray[np.unsignedinteger]:
        """Memory-map the token ids of `train`, `dev` or `test` of a text."""
        facts = self.facts(split)
        [file] = facts["files"]
        return np.memmap(self.folder / file, dtype=facts["dtype"], mode="r")
