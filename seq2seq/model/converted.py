"""The form of a model directory for CTranslate2: a folder in it that is written when it is needed.

It can be deleted at any time. The checksum of the weights that it was made of shows whether it is
still theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, cast

from seq2seq.config import Config
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError, not_a_number
from seq2seq.files import atomic_folder, exclusive, find_damage, read_sums, sha256_of
from seq2seq.model.saved import CONVERTED_FOLDER, WEIGHTS_FILE

if TYPE_CHECKING:
    from seq2seq.model.transformer import Transformer

CHECKSUM_FILE = "weights.sha256"
VERSION = 1
"""Increased when the same weights are written in another way."""

logger = logging.getLogger(__name__)


def has_ctranslate2() -> bool:
    """Return whether CTranslate2 can be loaded; not every platform has it."""
    try:
        import ctranslate2  # noqa: F401
    except ImportError:
        return False
    return True


@contextmanager
def converted(folder: Path) -> Iterator[Path]:
    """Yield the form of a model directory for CTranslate2, in a temporary folder if need be.

    Raises UserError if the weights are not finite.
    """
    folder = folder.resolve()
    kept, weights = folder / CONVERTED_FOLDER, folder / WEIGHTS_FILE
    checksum = (read_sums(folder) or {}).get(WEIGHTS_FILE) or sha256_of(weights)
    made_of = f"{checksum}, version {VERSION}\n"
    if not _is_made_of(kept, made_of):
        from seq2seq.model.ctranslate2 import write_model  # which loads torch
        from seq2seq.model.directory import load_model

        loaded = load_model(folder, "cpu")
        model = cast("Transformer", loaded.model)
        if not all(bool(parameter.isfinite().all()) for parameter in model.parameters()):
            raise UserError(not_a_number(str(folder)))
        try:
            with exclusive(kept), atomic_folder(kept) as draft:
                write_model(model, loaded.tokenizer, loaded.config, draft)
                (draft / CHECKSUM_FILE).write_text(made_of)
        except (OSError, UserError) as error:
            logger.warning("%s cannot be kept, and is made anew each time: %s", kept, error)
            with temporarily_converted(model, loaded.tokenizer, loaded.config) as temporary:
                yield temporary
            return
    yield kept


@contextmanager
def temporarily_converted(
    model: Transformer, tokenizer: Tokenizer, config: Config
) -> Iterator[Path]:
    """Yield the form of a model for CTranslate2 in a temporary folder."""
    from seq2seq.model.ctranslate2 import write_model  # which loads torch

    with TemporaryDirectory() as name:
        write_model(model, tokenizer, config, Path(name))
        yield Path(name)


def _is_made_of(kept: Path, made_of: str) -> bool:
    try:
        return (kept / CHECKSUM_FILE).read_text() == made_of and not find_damage(kept)
    except OSError:
        return False
