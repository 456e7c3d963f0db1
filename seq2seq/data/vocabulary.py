"""Vocabularies map text to token ids and back."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import sentencepiece

from seq2seq.config import TokenizerConfig
from seq2seq.errors import UserError
from seq2seq.machine.threads import usable_cores

BOS, EOS, PAD, UNK = "<s>", "</s>", "<pad>", "<unk>"
THREADED_TEXTS = 1_000
"""Minimum number of texts for encoding in several threads: a corpus, not a batch."""
LANGUAGE = re.compile("\u2581<2(.+)>|>>(.+)<<")
"""Symbol of a target language: of this package, or of OPUS-MT."""
MAX_TRAINING_BYTES = 16_384
"""Maximum bytes of a training sentence. Longer sentences are skipped."""

logger = logging.getLogger(__name__)


class Vocabulary(ABC):
    """Maps text to ids and back."""

    model: bytes
    """Content of the vocabulary file."""
    size: int
    token_bytes: list[bytes]
    """UTF-8 bytes of each id, b"" for special symbols."""
    unk_id = pad_id = bos_id = eos_id = -1
    language_first = False
    """Whether a translation starts with the symbol of its language, and a source with the symbol of
    its own (M2M-100, NLLB). Encoded sources have the target language before their own."""

    @property
    def never_generated(self) -> list[int]:
        """Ids of padding and of the start symbol, unless that is the end symbol, too."""
        return sorted({self.pad_id, self.bos_id} - {self.eos_id})

    @property
    def checksum(self) -> str:
        """SHA-256 of the vocabulary file."""
        return hashlib.sha256(self.model).hexdigest()

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without start and end symbols."""

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each sequence of ids."""
        texts = self.token_bytes
        return [b"".join(texts[i] for i in row).decode("utf-8", "replace") for row in ids]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the printable piece of each id."""
        return self.decode([[i] for i in ids])


class SentencePieces(Vocabulary):
    """A SentencePiece model; special symbols that it lacks get the ids after its pieces."""

    def __init__(self, model: bytes, name: str) -> None:
        self.model = model
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError:
            raise UserError(f"{name} is not a SentencePiece model") from None
        self.unk_id = self._processor.unk_id()
        special = self._processor.pad_id(), self._processor.bos_id(), self._processor.eos_id()
        new_ids = itertools.count(self._processor.get_piece_size())
        self.pad_id, self.bos_id, self.eos_id = (i if i >= 0 else next(new_ids) for i in special)
        self.size = next(new_ids)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        num_pieces = self._processor.get_piece_size()
        names = {self.pad_id: PAD, self.bos_id: BOS, self.eos_id: EOS}
        return [self._processor.id_to_piece(i) if i < num_pieces else names[i] for i in ids]

    def knows(self, symbol: str) -> bool:
        """Return whether a tag is a single piece of the vocabulary."""
        piece = self._processor.piece_to_id(symbol)
        return piece != self.unk_id and not self._processor.is_control(piece)

    @cached_property
    def languages(self) -> Mapping[str, str]:
        """The symbol of each language that has one."""
        return language_symbols(self.model_pieces())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self._encode(texts, int)

    def encode_pieces(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the pieces of each text, without start and end symbols."""
        return self._encode(texts, str)

    def piece_starts(self, text: str) -> tuple[list[str], list[int]]:
        """Return the pieces of a text, and the position of each piece in the text."""
        found = self._processor.encode(text, return_type="offset_mapping")
        return found["pieces"], [start for start, _ in found["offsets"]]

    def _encode(self, texts: Sequence[str], kind: type) -> list[list[Any]]:
        threads = usable_cores() if len(texts) >= THREADED_TEXTS else 1
        return self._processor.encode(list(texts), out_type=kind, num_threads=threads)

    def piece_ids(self, texts: Sequence[Sequence[str]]) -> list[list[int]]:
        """Return the ids of the pieces of each text; unknown pieces get `unk_id`."""
        return [self._processor.piece_to_id(list(pieces)) for pieces in texts]

    def decode_pieces(self, texts: Sequence[Sequence[str]]) -> list[str]:
        """Return each text, given by its pieces, as one line."""
        return self.decode(self.piece_ids(texts))

    def model_pieces(self) -> list[str]:
        """Return all pieces of the SentencePiece model."""
        return self._processor.id_to_piece([*range(self._processor.get_piece_size())])

    @cached_property
    def scores(self) -> dict[str, float]:
        """Score of each piece of text, without special symbols, bytes and unused pieces."""
        model = self._processor
        tests = model.is_unknown, model.is_control, model.is_unused, model.is_byte
        pieces = enumerate(self.model_pieces())
        return {x: model.get_score(i) for i, x in pieces if not any(test(i) for test in tests)}

    def has_merges(self) -> bool:
        """Return whether this is a BPE model: its scores are ranks, not log-probabilities."""
        return all(score.is_integer() for score in self.scores.values())

    def keeps_spaces(self) -> bool:
        """Return whether spaces and line feeds are preserved; language models need this."""
        text = " a\n  b \n"
        return Vocabulary.decode(self, self.encode([text])) == [text]

    @cached_property
    def token_bytes(self) -> list[bytes]:  # type: ignore[override]
        model, special = self._processor, (self.unk_id, self.pad_id, self.bos_id, self.eos_id)
        texts = []
        for i, piece in enumerate(self.pieces(range(self.size))):
            model_id = model.piece_to_id(piece)
            if model.is_byte(model_id):
                texts.append(bytes([int(piece[1:-1], 16)]))
            elif i in special or model.is_control(model_id):
                texts.append(b"")
            else:
                texts.append(piece.replace("\u2581", " ").encode())
        return texts

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each sequence as one line, without special symbols."""
        num_pieces = self._processor.get_piece_size()
        special = {self.pad_id, self.bos_id, self.eos_id}
        plain = [[i for i in row if i < num_pieces and i not in special] for row in ids]
        return [text.replace("\n", " ") for text in self._processor.decode(plain)]


def language_symbols(pieces: Iterable[str]) -> dict[str, str]:
    """Return the symbols among pieces, by their languages."""
    found = ((LANGUAGE.fullmatch(piece), piece) for piece in pieces)
    return {match[1] or match[2]: piece for match, piece in found if match}


def train_vocabulary(
    texts: Iterable[str], config: TokenizerConfig, tags: Sequence[str], *, all_spaces: bool = False
) -> SentencePieces:
    """Train a SentencePiece model with `tags` as user-defined symbols.

    all_spaces: preserve all spaces and add none before a text (language models).
    """
    logger.info("training the tokenizer: %s, %d pieces", config.kind, config.vocab_size)
    model = io.BytesIO()
    # SentencePiece, which also keeps a list, would turn an error of an iterator into another.
    sentences = [text for text in texts if len(text.encode()) <= MAX_TRAINING_BYTES]
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type=config.kind,
            vocab_size=config.vocab_size,
            hard_vocab_limit=False,
            character_coverage=0.9999 if config.kind == "bpe" else 1.0,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=not all_spaces,
            add_dummy_prefix=not all_spaces,
            allow_whitespace_only_pieces=all_spaces,
            user_defined_symbols=list(tags),
            max_sentence_length=MAX_TRAINING_BYTES,
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise UserError(
            f"tokenizer.vocab_size={config.vocab_size} does not fit the training text (lines of "
            f"over {MAX_TRAINING_BYTES:,} bytes are skipped): try a larger one (it includes 260 "
            "special symbols and bytes). SentencePiece reports: "
            f"{' '.join(str(error).rpartition('] ')[2].split())}"
        ) from None
    vocabulary = SentencePieces(model.getvalue(), "the trained tokenizer")
    if vocabulary.size < config.vocab_size:
        logger.info("  the text yields only %d pieces", vocabulary.size)
    return vocabulary


class Alphabet(Vocabulary):
    """Vocabulary of all characters of a text, or of all bytes, in code order."""

    def __init__(self, names: Iterable[str] | None) -> None:
        """names: all characters of a text; None for bytes."""
        self.names = None if names is None else sorted(set(names))
        self.model = json.dumps(self.names, ensure_ascii=False).encode()
        if self.names is None:
            self.token_bytes = [bytes([i]) for i in range(256)]
        else:
            self.token_bytes = [name.encode() for name in self.names]
        self.size = len(self.token_bytes)
        self._ids = {name: i for i, name in enumerate(self.names or ())}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text; raises UserError for an unknown character.

        Text may contain bytes as surrogate escapes (PEP 383), like command-line arguments.
        """
        if self.names is None:
            return [list(text.encode("utf-8", "surrogateescape")) for text in texts]
        try:
            return [[self._ids[character] for character in text] for text in texts]
        except KeyError as error:
            raise UserError(
                f"the character {error.args[0]!r} is not in the alphabet of {self.size} "
                "characters; tokenizer.kind=byte covers all characters"
            ) from None


class Labels(Alphabet):
    """Labels of a classifier, in alphabetical order."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return a list with the id of each label."""
        return [[self._ids[text]] for text in texts]
