"""Tokenizers of Hugging Face's MarianTokenizer: SentencePiece files and a vocabulary beside them.

source.spm and target.spm segment texts; vocab.json maps pieces to ids, in an order of its own. They
are turned into SentencePiece models with these ids.
"""

from __future__ import annotations

import json
from pathlib import Path

from seq2seq.data.sentencepiece_file import (
    CONTROL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Piece,
    read_model_type,
    read_pieces,
    with_pieces,
)
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import SentencePieces
from seq2seq.errors import UserError

MARIAN_FILES = ("source.spm", "target.spm")
UNK, EOS, PAD = "<unk>", "</s>", "<pad>"


def read_marian_tokenizer(folder: Path, start_id: int, sizes: tuple[int, int]) -> Tokenizer:
    """Return the tokenizer of a folder, with the ids of its vocabulary.

    start_id: of the decoder's start symbol. sizes: of the model's two embeddings.
    """
    models = [_read(folder / name) for name in MARIAN_FILES]
    vocabularies = [_read_ids(folder / "vocab.json", sizes[0])]
    separate = (folder / "target_vocab.json").exists()
    if separate:
        vocabularies.append(_read_ids(folder / "target_vocab.json", sizes[1]))
    start = next((name for name, i in vocabularies[-1].items() if i == start_id), PAD)
    source, target = (
        aligned(model, ids, start, folder / name)
        for model, ids, name in zip(
            models, (vocabularies[0], vocabularies[-1]), MARIAN_FILES, strict=True
        )
    )
    first = SentencePieces(source, str(folder / MARIAN_FILES[0]))
    if source == target:
        return Tokenizer(first, first)
    return Tokenizer(first, SentencePieces(target, str(folder / MARIAN_FILES[1])))


def aligned(model: bytes, ids: dict[str, int], start: str, path: Path) -> bytes:
    """Return a SentencePiece model with the ids of a vocabulary.

    Pieces that only the other language has are decoded, but texts are encoded without them. A piece
    without an id is left out: a unigram model then segments its text otherwise.
    """
    own = {piece.text: piece for piece in read_pieces(model)}
    missing = own.keys() - ids.keys() - {UNK, EOS, PAD, "<s>", start}
    if missing and read_model_type(model) != "unigram":
        raise UserError(
            f"{path}: {len(missing)} of its pieces have no id in the vocabulary, such as "
            f"{min(missing)!r}: a BPE model cannot do without them"
        )
    lowest = min((piece.score for piece in own.values()), default=0.0)
    pieces = []
    for text in sorted(ids, key=lambda text: ids[text]):
        if text == UNK:
            pieces.append(Piece(text, 0.0, UNKNOWN))
        elif text in (EOS, PAD, start):
            pieces.append(Piece(text, 0.0, CONTROL))
        elif text in own and own[text].type not in (UNKNOWN, CONTROL):
            pieces.append(own[text])
        elif text.startswith(">>") and text.endswith("<<"):  # a language to translate to
            pieces.append(Piece(text, 0.0, USER_DEFINED))
        else:
            pieces.append(Piece(text, lowest, UNUSED))
    return with_pieces(model, pieces, start)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def _read_ids(path: Path, size: int) -> dict[str, int]:
    """Read a vocabulary; ids that it lacks get names of their own."""
    try:
        ids = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    known = isinstance(ids, dict) and all(type(i) is int and 0 <= i < size for i in ids.values())
    if not known or len(set(ids.values())) < len(ids):
        raise UserError(f"{path} is not a vocabulary of {size} ids")
    for name in (UNK, EOS, PAD):
        if name not in ids:
            raise UserError(f"{path} has no {name}")
    for i in set(range(size)) - set(ids.values()):
        ids[f"<unused {i}>"] = i
    return ids
