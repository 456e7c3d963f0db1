"""The vocabularies of a run, and the files that hold them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seq2seq.data.vocabulary import Alphabet, Labels, SentencePieces, Vocabulary
from seq2seq.errors import UserError

SHARED_FILE = "tokenizer.model"
SEPARATE_FILES = ("source.model", "target.model")
ALPHABET_FILE = "alphabet.json"
LABELS_FILE = "labels.json"
TOKENIZER_FILES = (SHARED_FILE, *SEPARATE_FILES, ALPHABET_FILE, LABELS_FILE)
"""All that a tokenizer may consist of, the source's before the target's."""


@dataclass(frozen=True)
class Tokenizer:
    """The source's and the target's vocabulary, which are one object if they are shared.

    A language model has one, of its text; a classifier's target are its labels.
    """

    source: Vocabulary
    target: Vocabulary

    @property
    def shared(self) -> bool:
        """Whether both languages have one vocabulary."""
        return self.source is self.target

    @property
    def checksum(self) -> str:
        """SHA-256 of the model file, or of both, joined by a plus."""
        return "+".join(dict.fromkeys([self.source.checksum, self.target.checksum]))

    @property
    def files(self) -> dict[str, Vocabulary]:
        """The files that a model directory holds, by name."""
        if isinstance(self.target, Labels):
            return {SHARED_FILE: self.source, LABELS_FILE: self.target}
        if isinstance(self.source, Alphabet):
            return {ALPHABET_FILE: self.source}
        if self.shared:
            return {SHARED_FILE: self.source}
        return dict(zip(SEPARATE_FILES, (self.source, self.target), strict=True))

    def save(self, folder: Path) -> None:
        """Write the files into a folder."""
        for name, vocabulary in self.files.items():
            (folder / name).write_bytes(vocabulary.model)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read what `save` wrote."""
        return cls.from_files(tokenizer_files(folder) or [folder / SHARED_FILE])

    @classmethod
    def from_files(cls, paths: Sequence[Path]) -> Tokenizer:
        """Read one shared model, or source and target."""
        vocabularies = [_read_vocabulary(path) for path in paths]
        return cls(vocabularies[0], vocabularies[-1])


def tokenizer_files(folder: Path) -> list[Path]:
    """Return the tokenizer's files that a folder holds."""
    return [folder / name for name in TOKENIZER_FILES if (folder / name).exists()]


def _read_vocabulary(path: Path) -> Vocabulary:
    if not path.is_file():
        raise UserError(f"tokenizer model not found: {path}")
    if path.suffix != ".json":
        return SentencePieces(path.read_bytes(), str(path))
    try:
        names = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    return Labels(names) if path.name == LABELS_FILE else Alphabet(names)
