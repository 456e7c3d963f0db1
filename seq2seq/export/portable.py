"""What other programs need of a model: unique names of tokens, a search that they have."""

from __future__ import annotations

import logging
from dataclasses import replace

from seq2seq.config import DecodingConfig
from seq2seq.data.vocabulary import Vocabulary
from seq2seq.decoding.exported import OBEYED
from seq2seq.errors import UserError

logger = logging.getLogger(__name__)


def token_names(vocabulary: Vocabulary) -> list[str]:
    """Return the name of each id; raises UserError if two are the same."""
    names = vocabulary.pieces(range(vocabulary.size))
    if twice := len(names) - len(set(names)):
        raise UserError(
            f"tokens are found by name, and {twice} of this vocabulary have the name of another "
            "one: train a tokenizer without tags such as <pad>, <s> and </s>"
        )
    return names


def portable_decoding(decoding: DecodingConfig) -> DecodingConfig:
    """Return a recipe's section `decoding` without what other programs lack; log what changes."""
    new = {key: value for key, value in vars(DecodingConfig()).items() if key not in OBEYED}
    new["penalty_form"] = "power"
    for key, value in new.items():
        if (old := getattr(decoding, key)) != value:
            logger.warning("decoding.%s=%s becomes %s: the format has no other", key, old, value)
    return replace(decoding, **new)
