"""Vocabularies with other pieces than a pre-trained one: more for a new language, or fewer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain, islice

from seq2seq.data.mapped_pieces import (
    MASK,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    MappedPieces,
    model_proto,
)
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
    model = model_proto(vocabulary.model)
    entries = {entry.piece: entry for entry in model.pieces}
    lowest, step = min(entry.score for entry in model.pieces) - 1, int(vocabulary.has_merges())
    if not isinstance(vocabulary, MappedPieces):
        for piece in symbols.values():
            model.pieces.add(piece=piece, type=USER_DEFINED)
    for i, piece in enumerate(pieces):
        if piece in entries:
            entries[piece].type = NORMAL
        else:
            model.pieces.add(piece=piece, score=lowest - i * step)
    content = model.SerializeToString()
    if not isinstance(vocabulary, MappedPieces):
        return SentencePieces(content, "the extended tokenizer")
    new = [name for name in [*symbols.values(), *pieces] if name not in vocabulary.ids]
    ids = {**vocabulary.ids, **{name: vocabulary.size + i for i, name in enumerate(new)}}
    given = vocabulary.given
    if given:
        given = given._replace(symbols={**given.symbols, **symbols})
    return MappedPieces(content, ids, "the extended tokenizer", given)


def lacking_pieces(vocabulary: SentencePieces, trained: SentencePieces) -> list[str]:
    """Return the pieces of a trained vocabulary that another one lacks, single characters first."""
    known = {*vocabulary.pieces(range(vocabulary.size))}
    entries = model_proto(trained.model).pieces
    pieces = [x.piece for x in entries if x.type == NORMAL and x.piece not in known]
    return sorted(pieces, key=lambda piece: len(piece) > 1)


def reduced(tokenizer: Tokenizer, languages: Sequence[str], texts: Iterable[str]) -> Tokenizer:
    """Return a tokenizer with the symbols of some languages, and the pieces that texts need.

    Single characters are kept, too. A text of kept pieces has the same pieces as before.
    """
    source, target = tokenizer.translation_vocabularies
    symbols = {language: tokenizer.languages[language] for language in languages}
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
    ids, model = {piece: i for i, piece in enumerate(names)}, model_proto(vocabulary.model)
    for entry in model.pieces:
        if entry.type == NORMAL and entry.piece not in ids:
            entry.type = UNUSED
    given = vocabulary.given and vocabulary.given._replace(symbols=symbols)
    return MappedPieces(model.SerializeToString(), ids, "the reduced tokenizer", given)


def old_ids(old: SentencePieces, new: SentencePieces) -> list[list[int]]:
    """Return for each piece of a vocabulary the ids of another one whose mean stands for it.

    That is the same piece if there is one; for the symbol of a language, all such symbols; else
    the pieces that spell it, or all pieces if they are unknown.
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
            found = [i for name in spelled for i in ids.get(name, ())]
            ids[piece] = found or list(range(old.size))
        rows.append(ids[piece])
    return rows
