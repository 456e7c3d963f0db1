"""Tokenizers of Hugging Face's MarianTokenizer: SentencePiece files and a vocabulary beside them.

source.spm and target.spm segment texts; vocab.json maps pieces to ids, for both languages unless
there is a target_vocab.json.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from seq2seq.data.json_objects import read_object_file
from seq2seq.data.vocabulary import SentencePieces
from seq2seq.errors import UserError

MARIAN_FILES = ("source.spm", "target.spm")
IDS_FILES = ("vocab.json", "target_vocab.json")
SETTINGS_FILE = "config.json"
UNK, EOS, PAD = "<unk>", "</s>", "<pad>"


class MarianPieces(SentencePieces):
    """The pieces of a SentencePiece model with the ids of a vocabulary.

    A piece without an id is unknown; one that only the other language has can be decoded.
    """

    def __init__(self, model: bytes, ids: dict[str, int], name: str) -> None:
        """ids: in their order."""
        super().__init__(model, name)
        self.ids, self._names = ids, list(ids)
        self.size, self.unk_id, self.eos_id = len(ids), ids[UNK], ids[EOS]
        self.pad_id = self.bos_id = ids[PAD]  # Marian starts a translation with padding

    @property
    def checksum(self) -> str:
        """SHA-256 of model and vocabulary."""
        return hashlib.sha256(self.model + json.dumps(self.ids).encode()).hexdigest()

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._names[i] for i in ids]

    def knows(self, symbol: str) -> bool:
        return symbol in self.ids.keys() - {UNK, EOS, PAD}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self.piece_ids(self.encode_pieces(texts))

    def piece_ids(self, rows: Sequence[Sequence[str]]) -> list[list[int]]:
        return [[self.ids.get(piece, self.unk_id) for piece in row] for row in rows]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return self.decode_pieces([self.pieces(row) for row in ids])

    def decode_pieces(self, rows: Sequence[Sequence[str]]) -> list[str]:
        plain = [[piece for piece in row if piece not in (EOS, PAD)] for row in rows]
        texts = self._processor.decode(plain) if plain else []
        return [text.replace("\u2581", " ").strip() for text in texts]


def marian_vocabularies(folder: Path) -> list[SentencePieces]:
    """Return the vocabularies of source and target.

    A model that seq2seq exported keeps the ids of its SentencePiece models. Without a config.json,
    as in a run, vocab.json has the ids.
    """
    settings = read_object_file(folder / SETTINGS_FILE, optional=True)
    size = settings.get("vocab_size")
    ids = [_read_ids(folder / IDS_FILES[0], size)]
    if (folder / IDS_FILES[1]).exists():
        ids.append(_read_ids(folder / IDS_FILES[1], settings.get("decoder_vocab_size") or size))
    paths = [folder / name for name in MARIAN_FILES]
    source, target = (SentencePieces(_read(path), str(path)) for path in paths)
    pieces = [own.pieces(range(own.size)) for own in (source, target)]
    if pieces != [list(ids[0]), list(ids[-1])]:
        source = MarianPieces(source.model, ids[0], str(paths[0]))
        target = MarianPieces(target.model, ids[-1], str(paths[1]))
    start, bos = settings.get("decoder_start_token_id"), target.bos_id
    if start not in (None, bos):
        raise UserError(
            f"{folder / SETTINGS_FILE}: decoder_start_token_id={start} has no equivalent here; "
            f"models with {bos}, the id of {target.pieces([bos])[0]}, can be read"
        )
    return [source, source if source.checksum == target.checksum else target]


def marian_files(vocabularies: Sequence[MarianPieces]) -> dict[str, bytes]:
    """Return the files that `marian_vocabularies` reads, by name, source first and target last."""
    source, target = vocabularies
    maps = [json.dumps(own.ids, ensure_ascii=False, indent=0).encode() for own in vocabularies]
    files = dict(zip(IDS_FILES, dict.fromkeys(maps), strict=False))  # one if both are the same
    return {MARIAN_FILES[0]: source.model, **files, MARIAN_FILES[1]: target.model}


def _read_ids(path: Path, size: int | None) -> dict[str, int]:
    """Read a vocabulary; ids that it lacks get names of their own."""
    ids = read_object_file(path)
    every = set(range(size or len(ids)))
    if {*ids.values()} - every or len({*ids.values()}) < len(ids) or {UNK, EOS, PAD} - ids.keys():
        raise UserError(f"{path} is not a vocabulary of {len(every)} ids with {UNK}, {EOS}, {PAD}")
    if languages := [text for text in ids if text.startswith(">>") and text.endswith("<<")]:
        raise UserError(
            f"{path.parent}: the model translates to several languages, by symbols such as "
            f"{languages[0]}: such models cannot be read"
        )
    ids |= {f"<unused {i}>": i for i in every - {*ids.values()}}
    return dict(sorted(ids.items(), key=lambda item: item[1]))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
