"""SentencePiece models as the rest of the toolkit sees them: text to ids and back.

Normalisation: runs of spaces become one, spaces at the ends go, and U+2581, SentencePiece's own
sign for a space, reads back as one, as does a line feed. Everything else survives
`decode(encode(text))`, characters that the vocabulary lacks as their UTF-8 bytes.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import sentencepiece

from seq2seq.config import TokenizerConfig
from seq2seq.errors import UserError

SHARED_FILE = "tokenizer.model"
SEPARATE_FILES = ("source.model", "target.model")
MAX_TRAINING_BYTES = 16_384
"""Longer sentences teach a vocabulary nothing and are left out of its training."""

logger = logging.getLogger(__name__)


class Vocabulary:
    """One SentencePiece model; special symbols that it lacks get ids behind its own pieces."""

    def __init__(self, model: bytes, name: str) -> None:
        self.model = model
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError:
            raise UserError(f"{name} is not a SentencePiece model") from None
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

    @property
    def checksum(self) -> str:
        """SHA-256 of the model file."""
        return hashlib.sha256(self.model).hexdigest()

    def knows(self, symbol: str) -> bool:
        """Say whether a tag is a symbol of its own, never cut."""
        return self._processor.piece_to_id(symbol) != self.unk_id

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return each text's ids, without start and end symbols."""
        return self._processor.encode(list(texts), out_type=int)

    def sample(self, texts: Sequence[str], dropout: float) -> list[list[int]]:
        """Encode with each merge left out at probability `dropout` (Provilkov et al. 2020)."""
        return [
            self._processor.encode(text, out_type=int, enable_sampling=True, alpha=dropout)
            for text in texts
        ]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return each sequence's text as one line; special symbols vanish."""
        own = self._processor.get_piece_size()
        special = {self.pad_id, self.bos_id, self.eos_id}
        plain = [[i for i in row if i < own and i not in special] for row in ids]
        return [text.replace("\n", " ") for text in self._processor.decode(plain)]


@dataclass(frozen=True)
class Tokenizer:
    """The source's and the target's vocabulary, which are one object if they are shared."""

    source: Vocabulary
    target: Vocabulary

    @property
    def shared(self) -> bool:
        """Whether both languages have one vocabulary."""
        return self.source is self.target

    @property
    def checksum(self) -> str:
        """SHA-256 of the model file, or of both, joined by a plus."""
        return "+".join(dict.fromkeys([self.source.checksum, self.target.checksum]))

    @staticmethod
    def file_names(shared: bool) -> tuple[str, ...]:
        """The files that a model directory holds."""
        return (SHARED_FILE,) if shared else SEPARATE_FILES

    def save(self, folder: Path) -> None:
        """Write the model file, or both, into a folder."""
        vocabularies = [self.source] if self.shared else [self.source, self.target]
        for name, vocabulary in zip(self.file_names(self.shared), vocabularies, strict=True):
            (folder / name).write_bytes(vocabulary.model)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read what `save` wrote."""
        shared = not (folder / SEPARATE_FILES[0]).exists()
        return cls.from_files([folder / name for name in cls.file_names(shared)])

    @classmethod
    def from_files(cls, paths: Sequence[Path]) -> Tokenizer:
        """Read one shared SentencePiece model, or source and target."""
        vocabularies = []
        for path in paths:
            if not path.is_file():
                raise UserError(f"tokenizer model not found: {path}")
            vocabularies.append(Vocabulary(path.read_bytes(), str(path)))
        return cls(vocabularies[0], vocabularies[-1])


def train_vocabulary(
    texts: Iterable[str], config: TokenizerConfig, tags: Sequence[str]
) -> Vocabulary:
    """Train a SentencePiece model that knows `tags` as symbols of their own."""
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(t for t in texts if len(t.encode()) <= MAX_TRAINING_BYTES),
            model_writer=model,
            model_type=config.kind,
            vocab_size=config.vocab_size,
            hard_vocab_limit=False,
            character_coverage=0.9999 if config.kind == "bpe" else 1.0,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=True,
            user_defined_symbols=list(tags),
            max_sentence_length=MAX_TRAINING_BYTES,
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise UserError(_training_advice(config, str(error))) from None
    vocabulary = Vocabulary(model.getvalue(), "the trained tokenizer")
    if vocabulary.size < config.vocab_size:
        logger.info("  the text has no more than %d pieces", vocabulary.size)
    return vocabulary


def _training_advice(config: TokenizerConfig, error: str) -> str:
    reason = " ".join(error.split())
    better = "larger" if "smaller than required" in reason else "smaller"
    return (
        f"tokenizer.vocab_size={config.vocab_size} does not suit the training text; "
        f"try a {better} one (260 special symbols and bytes are included). SentencePiece says: "
        f"{reason}"
    )
