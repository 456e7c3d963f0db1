"""Vocabularies of Hugging Face's MarianTokenizer: SentencePiece models with separate ids.

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
BOS, EOS, PAD, UNK = "<s>", "</s>", "<pad>", "<unk>"


class MarianPieces(SentencePieces):
    """A SentencePiece model whose pieces have the ids of a vocab.json.

    A piece without an id is encoded as unknown. Pieces of the other language can be decoded.
    """

    def __init__(self, model: bytes, ids: dict[str, int], name: str) -> None:
        """ids: id of each piece, sorted by id."""
        super().__init__(model, name)
        self.ids, self._names = ids, list(ids)
        self.size, self.unk_id, self.eos_id, self.pad_id = len(ids), ids[UNK], ids[EOS], ids[PAD]
        # Marian models start a translation with padding; exports of seq2seq have a start symbol.
        self.bos_id = ids.get(BOS, self.pad_id)

    @property
    def checksum(self) -> str:
        """SHA-256 of model and vocabulary."""
        return hashlib.sha256(self.model + json.dumps(self.ids).encode()).hexdigest()

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._names[i] for i in ids]

    def knows(self, symbol: str) -> bool:
        return symbol in self.ids.keys() - {BOS, EOS, PAD, UNK}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self.piece_ids(self.encode_pieces(texts))

    def piece_ids(self, rows: Sequence[Sequence[str]]) -> list[list[int]]:
        return [[self.ids.get(piece, self.unk_id) for piece in row] for row in rows]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return self.decode_pieces([self.pieces(row) for row in ids])

    def decode_pieces(self, rows: Sequence[Sequence[str]]) -> list[str]:
        plain = [[piece for piece in row if piece not in (BOS, EOS, PAD)] for row in rows]
        texts = self._processor.decode(plain) if plain else []
        return [text.replace("\u2581", " ").replace("\n", " ").strip() for text in texts]


def marian_vocabularies(folder: Path) -> list[MarianPieces]:
    """Return the vocabularies of source and target."""
    names = IDS_FILES if (folder / IDS_FILES[1]).exists() else IDS_FILES[:1]
    ids = [_read_ids(folder / name) for name in names]
    source, target = (
        MarianPieces((folder / name).read_bytes(), piece_ids, str(folder / name))
        for name, piece_ids in zip(MARIAN_FILES, (ids[0], ids[-1]), strict=True)
    )
    return [source, source if source.checksum == target.checksum else target]


def marian_files(vocabularies: Sequence[SentencePieces]) -> dict[str, bytes]:
    """Return the files that `marian_vocabularies` reads, by name, source first and target last."""
    source, target = vocabularies
    ids = [{piece: i for i, piece in enumerate(x.pieces(range(x.size)))} for x in vocabularies]
    maps = [json.dumps(x, ensure_ascii=False, indent=0).encode() for x in ids]
    files = dict(zip(IDS_FILES, dict.fromkeys(maps), strict=False))  # one file if both are equal
    return {MARIAN_FILES[0]: source.model, **files, MARIAN_FILES[1]: target.model}


def _read_ids(path: Path) -> dict[str, int]:
    """Read the id of each piece, sorted by id."""
    ids = dict(sorted(read_object_file(path).items(), key=lambda item: item[1]))
    if languages := [text for text in ids if text.startswith(">>") and text.endswith("<<")]:
        raise UserError(
            f"{path.parent}: models that translate to several languages, by symbols such as "
            f"{languages[0]}, cannot be read"
        )
    return ids
