"""Tokenizer: the vocabularies of a model and their files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from pathlib import Path

from seq2seq.config import Direction, PairsConfig
from seq2seq.data.mapped_pieces import (
    IDS_FILES,
    LANGUAGES_FILE,
    M2M100_FILE,
    MARIAN_FILES,
    MappedPieces,
    mapped_files,
    mapped_vocabularies,
)
from seq2seq.data.vocabulary import Alphabet, Labels, SentencePieces, Vocabulary
from seq2seq.files import write_file
from seq2seq.text.pipeline import Pipeline
from seq2seq.text.protect import PLACEHOLDERS, Spelling, compile_patterns

SHARED_FILE = "tokenizer.model"
SEPARATE_FILES = ("source.model", "target.model")
ALPHABET_FILE = "alphabet.json"
LABELS_FILE = "labels.json"
MODEL_FILES = (SHARED_FILE, *SEPARATE_FILES, ALPHABET_FILE, *MARIAN_FILES, M2M100_FILE)
TOKENIZER_FILES = (*MODEL_FILES, *IDS_FILES, LANGUAGES_FILE, LABELS_FILE)
"""Names of all possible files of a tokenizer, source before target."""
OTHER_SPACES = "\t\u00a0\u2002\u2003\u2009\u202f\u3000"
"""Spaces that the model reads as a plain space if its vocabulary lacks them."""


@dataclass(frozen=True)
class Tokenizer:
    """Source and target vocabularies: one object if they are the same.

    A language model has one vocabulary. The target vocabulary of a classifier is its labels.
    """

    source: Vocabulary
    target: Vocabulary

    @cached_property
    def shared(self) -> bool:
        """Whether both vocabularies have the same ids, so that they can share one embedding."""
        source, target = self.source, self.target
        if isinstance(source, MappedPieces) and isinstance(target, MappedPieces):
            return source.ids == target.ids
        return source is target

    @property
    def has_placeholders(self) -> bool:
        """Whether both sides have the reserved symbols of protected spans."""
        return all(
            x.knows(symbol) for x in self.translation_vocabularies for symbol in PLACEHOLDERS
        )

    def symbols(self, direction: Direction) -> tuple[list[str], list[str]]:
        """Return the symbols of languages before a translation, and before a source.

        Models with a single target language have none.
        """
        source, target = (
            [symbol for symbol in [self.languages.get(language)] if symbol]
            for language in direction
        )
        return (target, source) if self.source.language_first else ([], target)

    def prefix(self, direction: Direction, tag: str | None = None) -> str | None:
        """Return what comes before a source: symbols of languages, and a tag.

        If translations start with a symbol, it is the first; see `Vocabulary.language_first`.
        """
        symbols = (symbol.lstrip("\u2581") for part in self.symbols(direction) for symbol in part)
        return " ".join(filter(None, [*symbols, tag])) or None

    @property
    def languages(self) -> Mapping[str, str]:
        """The symbol of each language that has one."""
        return self.source.languages if isinstance(self.source, SentencePieces) else {}

    @property
    def translation_vocabularies(self) -> tuple[SentencePieces, SentencePieces]:
        """The source and target vocabularies of a translation model."""
        assert isinstance(self.source, SentencePieces) and isinstance(self.target, SentencePieces)
        return self.source, self.target

    @property
    def checksum(self) -> str:
        """SHA-256 of the vocabulary, or of source and target, joined by a plus sign."""
        return "+".join(dict.fromkeys([self.source.checksum, self.target.checksum]))

    @property
    def files(self) -> dict[str, bytes]:
        """Content of the tokenizer files, by name, source first and target last."""
        source, target = self.source, self.target
        if isinstance(source, MappedPieces) and isinstance(target, MappedPieces):
            return mapped_files([source, target])
        if source is target:
            return {ALPHABET_FILE if isinstance(source, Alphabet) else SHARED_FILE: source.model}
        names = (SHARED_FILE, LABELS_FILE) if isinstance(target, Labels) else SEPARATE_FILES
        return dict(zip(names, (source.model, target.model), strict=True))

    def save(self, folder: Path) -> None:
        """Write the tokenizer files to a folder."""
        for name, content in self.files.items():
            write_file(folder / name, content)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read the tokenizer files in a folder."""
        paths = [folder / name for name in TOKENIZER_FILES if (folder / name).exists()]
        return cls.from_files(paths or [folder / SHARED_FILE])

    @classmethod
    def from_files(cls, paths: Sequence[Path]) -> Tokenizer:
        """Read a shared vocabulary, or source and target, or a folder of Hugging Face's files."""
        if paths[0].name in (*MARIAN_FILES, M2M100_FILE):
            return cls(*mapped_vocabularies(paths[0]))
        vocabularies = [_read_vocabulary(path) for path in paths]
        return cls(vocabularies[0], vocabularies[-1])


def language_piece(target: str) -> str:
    """Return the piece that tells a model to translate to a language."""
    return f"\u2581<2{target}>"


def _read_vocabulary(path: Path) -> Vocabulary:
    if path.suffix != ".json":
        return SentencePieces(path.read_bytes(), str(path))
    symbols = json.loads(path.read_bytes())
    return Labels(symbols) if path.name == LABELS_FILE else Alphabet(symbols)


def pipeline_of(
    config: PairsConfig,
    tokenizer: Tokenizer,
    directions: Sequence[Direction],
    *,
    tag: str | None = None,
    protect: Sequence[str] | None = None,
) -> Pipeline:
    """Return the way of texts to a model of a recipe and back.

    directions: the possible ones of the texts; all have the same symbols before a source. protect:
    patterns of protected spans, instead of the recipe's.
    """
    source, _ = tokenizer.translation_vocabularies
    pattern = compile_patterns(config.protect if protect is None else protect, "protect")
    pieces = source.encode_pieces([f"a{space}a" for space in OTHER_SPACES])
    unknown = [any(piece.startswith("<0x") for piece in row) for row in pieces]
    return Pipeline(
        Spelling(pattern, tokenizer.has_placeholders),
        languages=[direction.source for direction in directions],
        tag=tokenizer.prefix(directions[0], tag),
        spaces=dict.fromkeys(map(ord, compress(OTHER_SPACES, unknown)), " "),
        knows=lambda word: source.knows(f"\u2581{word}"),
    )
