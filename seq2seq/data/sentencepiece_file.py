"""Scores and types of pieces, read from a SentencePiece model file.

The file is a protocol buffer, defined by sentencepiece_model.proto in SentencePiece's source.
SentencePiece's own reader (`sentencepiece_model_pb2`) is not used: it needs a version of protobuf
that SentencePiece does not install and that conflicts with other packages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

NORMAL = 1
"""Type of ordinary pieces; special symbols, bytes and user-defined symbols have other types."""
MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


class Piece(NamedTuple):
    """A piece of a SentencePiece model."""

    text: str
    """Text of the piece, with U+2581 for a space."""
    score: float
    """Score; BPE applies the merge with the highest score first."""
    type: int


def read_pieces(model: bytes) -> list[Piece]:
    """Return the pieces in the order of their ids."""
    pieces = []
    for message in (value for number, value in _fields(model) if number == 1):
        fields = dict(_fields(message))
        [score] = struct.unpack("<f", fields.get(2, bytes(4)))
        pieces.append(Piece(fields.get(1, b"").decode(), score, fields.get(3, NORMAL)))
    return pieces


def read_model_type(model: bytes) -> str:
    """Return the model type: unigram, bpe, word or char."""
    options = next((value for number, value in _fields(model) if number == 2), b"")
    return MODEL_TYPES[dict(_fields(options)).get(3, 1)]


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value (int or bytes) of each field."""
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(message):
        number, wire_type = divmod(varint(), 8)
        if wire_type == 0:
            yield number, varint()
            continue
        length = varint() if wire_type == 2 else {1: 8, 5: 4}[wire_type]
        yield number, message[position : position + length]
        position += length
