"""Vocabularies with other pieces than a pre-trained one: more for a new language, or fewer."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain, islice

from seq2seq.data.mapped_pieces import MASK, NORMAL, UNUSED, USER_DEFINED, MappedPieces
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import BOS, EOS, PAD, UNK, SentencePieces
from seq2seq.errors import UserError

BATCH_SIZE = 1_000
"""Number of texts encoded at once."""


def extended(tokenizer: Tokenizer, languages: Sequence[str], pieces: Sequence[str]) -> Tokenizer:
    """Return a tokenizer with symbols for more languages and with more pieces.

    The pieces are merged after the old ones. Old ids stay, and new ones follow.
    """
    source, target = tokenizer.translation_vocabularies
    new = _extended(source, languages, pieces)
    return Tokenizer(new, new if target is source else _extended(target, languages, pieces))


def _extended(
    vocabulary: SentencePieces, languages: Sequence[str], pieces: Sequence[str]
) -> SentencePieces:
    known, symbol = next(iter(vocabulary.languages.items()))
    symbols = {language: symbol.replace(known, language) for language in languages}
    old, step = {*vocabulary.model_pieces()}, int(vocabulary.has_merges())
    lowest = min(vocabulary.scores.values()) - 1
    added = {x: lowest - i * step for i, x in enumerate(pieces) if x not in old}
    types = dict.fromkeys(old.intersection(pieces), NORMAL)
    if not isinstance(vocabulary, MappedPieces):
        new = dict.fromkeys(symbols.values(), 0.0)
        types |= dict.fromkeys(new, USER_DEFINED)
        return SentencePieces(edited(vocabulary.model, types, new | added), "extended")
    names = [name for name in [*symbols.values(), *pieces] if name not in vocabulary.ids]
    ids = {**vocabulary.ids, **{name: vocabulary.size + i for i, name in enumerate(names)}}
    given = vocabulary.given
    if given:
        given = given._replace(symbols={**given.symbols, **symbols})
    return MappedPieces(edited(vocabulary.model, types, added), ids, "extended", given)


def lacking_pieces(vocabulary: SentencePieces, trained: SentencePieces) -> list[str]:
    """Return the pieces of a trained vocabulary that another one lacks, single characters first."""
    known = {*vocabulary.pieces(range(vocabulary.size))}
    lacking = [piece for piece in trained.scores if piece not in known]
    return sorted(lacking, key=lambda piece: len(piece) > 1)


def reduced(tokenizer: Tokenizer, languages: Sequence[str], texts: Iterable[str]) -> Tokenizer:
    """Return a tokenizer with the symbols of some languages, and the pieces that texts need.

    Single characters are kept, too. A text of kept pieces has the same pieces as before.
    """
    source, target = tokenizer.translation_vocabularies
    symbols = {name: x for name, x in tokenizer.languages.items() if name in languages}
    used, lines = {BOS, EOS, PAD, UNK, MASK, *symbols.values()}, iter(texts)
    while batch := list(islice(lines, BATCH_SIZE)):
        for vocabulary in {source, target}:
            used.update(chain.from_iterable(vocabulary.encode_pieces(batch)))
    new = _reduced(source, used, symbols)
    return Tokenizer(new, new if target is source else _reduced(target, used, symbols))


def _reduced(
    vocabulary: SentencePieces, used: Set[str], symbols: Mapping[str, str]
) -> MappedPieces:
    if not isinstance(vocabulary, MappedPieces):
        raise UserError("pieces can be dropped from models of transformers only, such as NLLB")
    names = [piece for piece in vocabulary.ids if piece in used or len(piece) == 1]
    ids = {piece: i for i, piece in enumerate(names)}
    types = {piece: UNUSED for piece in vocabulary.scores if piece not in ids}
    given = vocabulary.given and vocabulary.given._replace(symbols=symbols)
    return MappedPieces(edited(vocabulary.model, types, {}), ids, "reduced", given)


def old_ids(old: SentencePieces, new: SentencePieces) -> list[list[int]]:
    """Return for each piece of a vocabulary the ids of another one whose mean stands for it.

    That is the same piece if there is one; for the symbol of a language, all such symbols; else
    the pieces that spell it. The list is empty if they are unknown.
    """
    ids = {piece: [i] for i, piece in enumerate(old.pieces(range(old.size)))}
    symbols = [ids[symbol][0] for symbol in old.languages.values()]
    ids = dict.fromkeys(new.languages.values(), symbols) | ids
    rows = []
    for piece in new.pieces(range(new.size)):
        if piece not in ids:
            spelled = old.encode_pieces([piece.replace("\u2581", " ")])[0]
            if spelled[:1] == ["\u2581"] and not piece.startswith("\u2581"):
                del spelled[0]
            ids[piece] = [i for name in spelled for i in ids.get(name, ())]
        rows.append(ids[piece])
    return rows


def edited(model: bytes, types: Mapping[str, int], added: Mapping[str, float]) -> bytes:
    """Return a SentencePiece model with other types of pieces, and with more pieces and scores.

    SentencePiece's own classes need the newest protobuf. This does not: a model is a sequence of
    messages, and of two values of a field the last one counts.
    """
    names = {name.encode(): kind for name, kind in types.items()}
    parts = [
        field(number, body + _type(names.get(body[2 : 2 + body[1]])) if number == 1 else body)
        for number, body in fields(model)
    ]
    for name, score in added.items():
        body = field(1, name.encode()) + b"\x15" + struct.pack("<f", score)
        parts.append(field(1, body + _type(types.get(name))))
    return b"".join(parts)


def _type(kind: int | None) -> bytes:
    return b"" if kind is None else bytes([0x18, kind])


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of the fields of a message, up to the first one without a length."""
    position = 0
    while position < len(message) and message[position] & 7 == 2:
        number, length, shift, byte = message[position] >> 3, 0, 0, 0x80
        while byte & 0x80:
            position += 1
            byte = message[position]
            length, shift = length | (byte & 0x7F) << shift, shift + 7
        position += 1 + length
        yield number, message[position - length : position]


def field(number: int, content: bytes) -> bytes:
    """Return a field of a message."""
    header, length = [number << 3 | 2], len(content)
    while length > 0x7F:
        header.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*header, length]) + content
