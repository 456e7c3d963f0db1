"""Scores and types of pieces, read from a SentencePiece model file.

The file is a protocol buffer, defined by sentencepiece_model.proto in SentencePiece's source. Its
package comes with a reader (`sentencepiece_model_pb2`), but that needs protobuf of at least the
version that generated it, which the package does not install and other packages rule out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

NORMAL = 1
"""Type of pieces that are no special symbol, byte or user-defined symbol."""
MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


class Piece(NamedTuple):
    """A piece of a SentencePiece model."""

    text: str
    """U+2581 stands for a space."""
    score: float
    """The merge with the highest score is applied first."""
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
    """Yield number and value (an int or bytes) of each field."""
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = message[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while place < len(message):
        number, wire_type = divmod(varint(), 8)
        if wire_type == 0:
            yield number, varint()
            continue
        length = varint() if wire_type == 2 else {1: 8, 5: 4}[wire_type]
        yield number, message[place : place + length]
        place += length
