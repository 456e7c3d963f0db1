"""Cached conversion of a model directory to CTranslate2.

The folder `ctranslate2` in the model directory is written when needed and can be deleted at any
time. It records the checksum of the converted weights and is written again when they change.
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
"""Version of the conversion: increased when its output changes."""

logger = logging.getLogger(__name__)


def has_ctranslate2() -> bool:
    """Return whether CTranslate2 can be imported; it does not exist for every platform."""
    try:
        import ctranslate2  # noqa: F401
    except ImportError:
        return False
    return True


@contextmanager
def converted(folder: Path) -> Iterator[Path]:
    """Yield the folder of a model directory converted to CTranslate2.

    It is temporary if the model directory is not writable. Raises UserError for non-finite weights.
    """
    folder = folder.resolve()
    cached, weights = folder / CONVERTED_FOLDER, folder / WEIGHTS_FILE
    checksum = (read_sums(folder) or {}).get(WEIGHTS_FILE) or sha256_of(weights)
    fingerprint = f"{checksum}, version {VERSION}\n"
    if not _is_current(cached, fingerprint):
        from seq2seq.model.ctranslate2 import write_model  # here: it loads torch
        from seq2seq.model.directory import load_model

        loaded = load_model(folder, "cpu")
        model = cast("Transformer", loaded.model)
        if not all(bool(parameter.isfinite().all()) for parameter in model.parameters()):
            raise UserError(not_a_number(str(folder)))
        try:
            with exclusive(cached), atomic_folder(cached) as draft:
                write_model(model, loaded.tokenizer, loaded.config, draft)
                (draft / CHECKSUM_FILE).write_text(fingerprint)
        except (OSError, UserError) as error:
            logger.warning("%s cannot be written: converting at each start (%s)", cached, error)
            with temporarily_converted(model, loaded.tokenizer, loaded.config) as temporary:
                yield temporary
            return
    yield cached


@contextmanager
def temporarily_converted(
    model: Transformer, tokenizer: Tokenizer, config: Config
) -> Iterator[Path]:
    """Yield a temporary folder with a model converted to CTranslate2."""
    from seq2seq.model.ctranslate2 import write_model  # here: it loads torch

    with TemporaryDirectory() as name:
        write_model(model, tokenizer, config, Path(name))
        yield Path(name)


def _is_current(cached: Path, fingerprint: str) -> bool:
    try:
        return (cached / CHECKSUM_FILE).read_text() == fingerprint and not find_damage(cached)
    except OSError:
        return False
