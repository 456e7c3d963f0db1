"""Tokenizers of Hugging Face's MarianTokenizer: SentencePiece files and a vocabulary beside them.

source.spm and target.spm segment texts; vocab.json maps pieces to ids, in an order of its own. They
are turned into SentencePiece models with these ids.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from seq2seq.data.json_objects import read_object_file
from seq2seq.data.sentencepiece_file import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    Piece,
    read_model_type,
    read_pieces,
    with_pieces,
)
from seq2seq.errors import UserError, shown

MARIAN_FILES = ("source.spm", "target.spm")
SETTINGS_FILE = "config.json"
UNKNOWN_PENALTY = 10.0
"""What SentencePiece subtracts from the lowest score for an unknown character."""
UNK, EOS, PAD = "<unk>", "</s>", "<pad>"


def marian_models(folder: Path) -> tuple[bytes, bytes]:
    """Return the SentencePiece models of source and target with the ids of the vocabulary.

    Their start symbol is the one with which the folder's model starts a translation.
    """
    settings = read_object_file(folder / SETTINGS_FILE)
    size = whole_number(settings, "vocab_size", folder)
    target_size = size
    if settings.get("decoder_vocab_size") is not None:
        target_size = whole_number(settings, "decoder_vocab_size", folder)
    vocabularies = [_read_ids(folder / "vocab.json", size)]
    if (folder / "target_vocab.json").exists():
        vocabularies.append(_read_ids(folder / "target_vocab.json", target_size))
    start_id = whole_number(settings, "decoder_start_token_id", folder)
    start = next((name for name, i in vocabularies[-1].items() if i == start_id), None)
    if start is None:
        raise UserError(
            f"{folder / SETTINGS_FILE}: decoder_start_token_id={start_id} is not in the vocabulary"
        )
    source, target = (folder / name for name in MARIAN_FILES)
    return (
        aligned(_read(source), vocabularies[0], start, source),
        aligned(_read(target), vocabularies[-1], start, target),
    )


def whole_number(settings: dict[str, Any], key: str, folder: Path) -> int:
    """Return a whole number of a folder's settings."""
    if type(value := settings.get(key)) is not int:
        raise UserError(f"{folder / SETTINGS_FILE}: {key}={shown(value)} must be a whole number")
    return value


def aligned(model: bytes, ids: dict[str, int], start: str, path: Path) -> bytes:
    """Return a SentencePiece model with the ids of a vocabulary.

    Pieces that only the other language has are decoded, but texts are encoded without them, except
    for single characters. A piece without an id is left out: a unigram model then segments its text
    otherwise. path: for errors.
    """
    try:
        own = {piece.text: piece for piece in read_pieces(model)}
        kind = read_model_type(model)
    except (KeyError, IndexError, ValueError, TypeError, struct.error):
        own, kind = {}, ""
    if not own:
        raise UserError(f"{path} is not a SentencePiece model")
    if languages := [text for text in ids if text.startswith(">>") and text.endswith("<<")]:
        raise UserError(
            f"{path.parent}: the model translates to several languages, by symbols such as "
            f"{languages[0]}: such models cannot be read"
        )
    missing = own.keys() - ids.keys() - {UNK, EOS, PAD, "<s>", start}
    if missing and kind != "unigram":
        raise UserError(
            f"{path}: {len(missing)} of its pieces have no id in the vocabulary, such as "
            f"{min(missing)!r}: a BPE model cannot do without them"
        )
    lowest = min(piece.score for piece in own.values())
    spells_bytes = any(piece.type == BYTE for piece in own.values())
    pieces = []
    for text in sorted(ids, key=lambda text: ids[text]):
        if text == UNK:
            pieces.append(Piece(text, 0.0, UNKNOWN))
        elif text in (EOS, PAD, start):
            pieces.append(Piece(text, 0.0, CONTROL))
        elif text in own and own[text].type not in (UNKNOWN, CONTROL):
            pieces.append(own[text])
        elif len(text) == 1 and not spells_bytes:
            # Marian looks up what SentencePiece does not know, such as ü in an English text.
            pieces.append(Piece(text, lowest - UNKNOWN_PENALTY, NORMAL))
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
    ids = read_object_file(path)
    known = all(type(i) is int and 0 <= i < size for i in ids.values())
    if not known or len(set(ids.values())) < len(ids):
        raise UserError(f"{path} is not a vocabulary of {size} ids")
    for name in (UNK, EOS, PAD):
        if name not in ids:
            raise UserError(f"{path} has no {name}")
    for i in set(range(size)) - set(ids.values()):
        ids[f"<unused {i}>"] = i
    return ids
