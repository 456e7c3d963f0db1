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
from seq2seq.model.saved import CONVERTED_FOLDER, WEIGHTS_FILE, num_positions

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
    """Yield the form of a model directory for CTranslate2, in a temporary folder if need be."""
    folder = folder.resolve()
    kept, checksum = folder / CONVERTED_FOLDER, _weights_checksum(folder)
    if not _is_current(kept, checksum):
        loaded = _load(folder)
        try:
            with exclusive(kept), atomic_folder(kept) as draft:
                _write(*loaded, draft)
                (draft / CHECKSUM_FILE).write_text(checksum)
        except (OSError, UserError) as error:
            logger.warning("%s cannot be kept, and is made anew each time: %s", kept, error)
            with temporarily_converted(*loaded) as temporary:
                yield temporary
            return
    yield kept


@contextmanager
def temporarily_converted(
    model: Transformer, tokenizer: Tokenizer, config: Config
) -> Iterator[Path]:
    """Yield the form of a model for CTranslate2 in a temporary folder."""
    with TemporaryDirectory() as name:
        _write(model, tokenizer, config, Path(name))
        yield Path(name)


def _write(model: Transformer, tokenizer: Tokenizer, config: Config, folder: Path) -> None:
    from seq2seq.model.ctranslate2 import write_model  # which loads torch

    write_model(model, tokenizer, num_positions(config), folder)


def _is_current(kept: Path, checksum: str) -> bool:
    try:
        return (kept / CHECKSUM_FILE).read_text() == checksum and not find_damage(kept)
    except OSError:
        return False


def _weights_checksum(folder: Path) -> str:
    """Return the SHA-256 of the weights, from the folder's checksums if there are any."""
    known = (read_sums(folder) or {}).get(WEIGHTS_FILE)
    return f"{known or sha256_of(folder / WEIGHTS_FILE)}, version {VERSION}\n"


def _load(folder: Path) -> tuple[Transformer, Tokenizer, Config]:
    """Load a model directory; raises UserError if the weights are not finite."""
    from seq2seq.model.directory import load_model  # which loads torch

    loaded = load_model(folder, "cpu")
    model = cast("Transformer", loaded.model)
    if not all(bool(parameter.isfinite().all()) for parameter in model.parameters()):
        raise UserError(not_a_number(str(folder)))
    return model, loaded.tokenizer, loaded.config
