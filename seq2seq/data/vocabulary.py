"""Vocabularies as the rest of the toolkit sees them: text to ids and back.

They are SentencePiece models, the alphabets of language models and the labels of classifiers. Of
SentencePiece: runs of spaces become one, spaces at the ends go, and U+2581, its own sign for a
space, reads back as one, as does a line feed. Everything else survives `decode(encode(text))`,
characters that the vocabulary lacks as their UTF-8 bytes. A language model's pieces keep all spaces
and line feeds.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from seq2seq.config import TokenizerConfig
from seq2seq.errors import UserError

MAX_TRAINING_BYTES = 16_384
"""Longer sentences teach a vocabulary nothing and are left out of its training."""
NUM_FIXED_PIECES = 260
"""Bytes and special symbols, which every trained vocabulary has."""

logger = logging.getLogger(__name__)


class Vocabulary(ABC):
    """Text to ids and back: exact, cut in one way, without special symbols, unless it says so."""

    model: bytes
    """What its file holds."""
    size: int
    unk_id = pad_id = bos_id = eos_id = -1

    @property
    def checksum(self) -> str:
        """SHA-256 of the file."""
        return hashlib.sha256(self.model).hexdigest()

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return each text's ids, without start and end symbols."""

    @abstractmethod
    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return each sequence's text."""

    @abstractmethod
    def token_bytes(self) -> list[bytes]:
        """Return what each id stands for in UTF-8; nothing for special symbols."""

    def knows(self, symbol: str) -> bool:
        """Say whether a tag is a symbol of its own, never cut."""
        return False

    def keeps_spaces(self) -> bool:
        """Say whether spaces and line ends survive, as a language model needs it."""
        return True


class SentencePieces(Vocabulary):
    """One SentencePiece model; special symbols that it lacks get ids behind its own pieces."""

    def __init__(self, model: bytes, name: str) -> None:
        self.model = model
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError:
            raise UserError(f"{name} is not a SentencePiece model") from None
        if not model:  # of which SentencePiece makes a processor that can do nothing
            raise UserError(f"{name} is empty, and no SentencePiece model")
        self.size = self._processor.get_piece_size()
        self.unk_id = self._processor.unk_id()
        self.pad_id = self._own_or_new(self._processor.pad_id())
        self.bos_id = self._own_or_new(self._processor.bos_id())
        self.eos_id = self._own_or_new(self._processor.eos_id())

    def _own_or_new(self, special_id: int) -> int:
        if special_id >= 0:
            return special_id
        self.size += 1
        return self.size - 1

    def knows(self, symbol: str) -> bool:
        """Say whether a tag is a piece."""
        return self._processor.piece_to_id(symbol) != self.unk_id

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return each text's ids, without start and end symbols."""
        # One thread: where it takes long, several processes do it.
        return self._processor.encode(list(texts), out_type=int, num_threads=1)

    def keeps_spaces(self) -> bool:
        """Try it with a text."""
        text, pieces = " a\n  b \n", self.token_bytes()
        return b"".join(pieces[i] for i in self.encode([text])[0]) == text.encode()

    def token_bytes(self) -> list[bytes]:
        """Return what each id stands for in UTF-8; nothing for special symbols."""
        model = self._processor
        pieces = []
        for i in range(model.get_piece_size()):
            piece = model.id_to_piece(i)
            if model.is_byte(i):
                pieces.append(bytes([int(piece[1:-1], 16)]))
            elif model.is_control(i) or model.is_unknown(i):
                pieces.append(b"")
            else:
                pieces.append(piece.replace("\u2581", " ").encode())
        return pieces + [b""] * (self.size - len(pieces))

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return each sequence's text as one line; special symbols vanish."""
        own = self._processor.get_piece_size()
        special = {self.pad_id, self.bos_id, self.eos_id}
        plain = [[i for i in row if i < own and i not in special] for row in ids]
        return [text.replace("\n", " ") for text in self._processor.decode(plain)]


class Alphabet(Vocabulary):
    """A text's own characters, or the 256 bytes: each an id, in the order of their numbers."""

    def __init__(self, characters: Sequence[str] | None) -> None:
        """characters: all that a text holds; None for bytes."""
        self.characters = None if characters is None else sorted(set(characters))
        self.model = json.dumps(self.characters, ensure_ascii=False).encode()
        self.size = 256 if self.characters is None else len(self.characters)
        if self.characters is not None:
            self._codes = np.array([ord(character) for character in self.characters])

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return each text's ids; raises UserError for a character that is none of these.

        Bytes may hide in a text as they do in a command's arguments: surrogateescape (PEP 383).
        """
        if self.characters is None:
            raw = (text.encode("utf-8", "surrogateescape") for text in texts)
            return [self.encode_bytes(each).tolist() for each in raw]
        return [self.encode_text(text).tolist() for text in texts]

    @staticmethod
    def encode_bytes(raw: bytes) -> NDArray[np.int64]:
        """Return the ids of any bytes."""
        return np.frombuffer(raw, dtype=np.uint8).astype(np.int64)

    def encode_text(self, text: str) -> NDArray[np.int64]:
        """Return the ids of a text's characters."""
        raw = text.encode("utf-32-le", "surrogatepass")
        codes = np.frombuffer(raw, dtype=np.uint32).astype(np.int64)
        ids = np.searchsorted(self._codes, codes).clip(max=self.size - 1)
        if (wrong := self._codes[ids] != codes).any():
            raise UserError(
                f"the character {chr(codes[wrong][0])!r} is none of the {self.size} that the model "
                "knows; one trained with tokenizer.kind=byte knows all"
            )
        return ids

    def token_bytes(self) -> list[bytes]:
        """Return what each id stands for in UTF-8."""
        if self.characters is None:
            return [bytes([i]) for i in range(256)]
        return [character.encode() for character in self.characters]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return each sequence's text."""
        pieces = self.token_bytes()
        return [b"".join(pieces[i] for i in row).decode("utf-8", "replace") for row in ids]


class Labels(Vocabulary):
    """The labels of a classifier, in alphabetical order: a text has one."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = sorted(set(names))
        self.model = json.dumps(self.names, ensure_ascii=False).encode()
        self.size = len(self.names)
        self._ids = {name: i for i, name in enumerate(self.names)}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return each label's number, as a row of one."""
        return [[self._ids[text]] for text in texts]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return each label's name."""
        return [self.names[i] for [i] in ids]

    def token_bytes(self) -> list[bytes]:
        """Return the labels' names."""
        return [name.encode() for name in self.names]


def train_vocabulary(
    texts: Iterable[str], config: TokenizerConfig, tags: Sequence[str], *, all_spaces: bool = False
) -> SentencePieces:
    """Train a SentencePiece model that knows `tags` as symbols of their own.

    all_spaces: change no space, and put none before a text: for language models.
    """
    model = io.BytesIO()
    faults: list[BaseException] = []

    def sentences() -> Iterator[str]:
        try:
            yield from (text for text in texts if len(text.encode()) <= MAX_TRAINING_BYTES)
        except (Exception, KeyboardInterrupt) as fault:
            faults.append(fault)  # SentencePiece would raise a RuntimeError of its own instead
            raise

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences(),
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
        if faults:
            raise faults[0] from None
        raise UserError(_training_advice(config, str(error))) from None
    vocabulary = SentencePieces(model.getvalue(), "the trained tokenizer")
    if vocabulary.size < config.vocab_size:
        logger.info("  the text has no more than %d pieces", vocabulary.size)
    return vocabulary


def _training_advice(config: TokenizerConfig, error: str) -> str:
    if "!sentences_.empty()" in error:
        return (
            f"there is no text to train a tokenizer on (lines of over {MAX_TRAINING_BYTES:,} bytes "
            "are left out)"
        )
    reason = " ".join(error.split())
    small = "smaller than required" in reason or config.vocab_size <= NUM_FIXED_PIECES
    better = "larger" if small else "smaller"
    return (
        f"tokenizer.vocab_size={config.vocab_size} does not suit the training text; "
        f"try a {better} one ({NUM_FIXED_PIECES} special symbols and bytes are included). "
        f"SentencePiece says: {reason}"
    )
