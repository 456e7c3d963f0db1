"""Training of SentencePiece vocabularies."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterable, Sequence

import sentencepiece

from seq2seq.config import TokenizerConfig
from seq2seq.data.vocabulary import SentencePieces
from seq2seq.errors import UserError

MAX_TRAINING_BYTES = 16_384
"""Maximum bytes of a training sentence. Longer sentences are skipped."""

logger = logging.getLogger(__name__)


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
