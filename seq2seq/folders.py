"""Folders that are written whole or not at all, and that show it when a byte of them changes."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import safetensors

from seq2seq.errors import UserError

SUMS_FILE = "SHA256SUMS"
"""One line for each file of the folder, as `sha256sum --check` reads it."""


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """Give a draft folder to fill; when all went well it takes the place of `folder`.

    Whatever stops the process at any moment, `folder` is the old one or the new one. Raises
    UserError where the disk takes no more, and gives the room back.
    """
    recover(folder)
    draft, old = _draft(folder), _old(folder)
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True)
        yield draft
        write_sums(draft)
        for path in [*draft.iterdir(), draft]:
            _sync(path)
    except (OSError, safetensors.SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise UserError(f"{folder} could not be written: {_reason(error)}") from None
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    if folder.exists():
        folder.rename(old)
    draft.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
    _sync(folder.parent)


def write_sums(folder: Path) -> None:
    """Write the checksum of every file in a folder."""
    files = sorted(path for path in folder.iterdir() if path.name != SUMS_FILE)
    sums = "".join(f"{sha256_of(path)}  {path.name}\n" for path in files)
    (folder / SUMS_FILE).write_text(sums, encoding="utf-8")


def recover(folder: Path) -> None:
    """Put a folder back in its place that a crash caught between two renames."""
    old = _old(folder)
    if old.exists() and not folder.exists():
        old.rename(folder)


def copy_linked(source: Path, names: Sequence[str], folder: Path) -> None:
    """Fill a folder with files of another, as hard links where the file system has them."""
    for name in names:
        try:
            os.link(source / name, folder / name)
        except OSError:
            shutil.copy2(source / name, folder / name)


def require_room(folder: Path, num_bytes: int) -> None:
    """Raise UserError if the disk of a folder (or of its parents) has not so many bytes left."""
    place = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(place).free
    if free < num_bytes:
        raise UserError(
            f"no room for {folder}: it takes {_megabytes(num_bytes)}, the disk has "
            f"{_megabytes(free)} left: free {_megabytes(num_bytes - free)} more"
        )


def damage(folder: Path) -> str | None:
    """Say what is wrong with a folder that `written_whole` wrote; None if every byte is there."""
    try:
        lines = (folder / SUMS_FILE).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return f"{SUMS_FILE} is missing or unreadable"
    for line in lines:
        expected, _, name = line.partition("  ")
        path = folder / name
        if not name or not path.is_file():
            return f"{name or SUMS_FILE} is missing"
        if sha256_of(path) != expected:
            return f"{name} is not what was written"
    return None


def sha256_of(path: Path) -> str:
    """Return a file's checksum."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _draft(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.tmp")


def _old(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old")


def _sync(path: Path) -> None:
    """Have a file, or the entries of a folder, on the disk itself."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # Windows opens no folders
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: Exception) -> str:
    text = str(error)
    if isinstance(error, OSError):
        text = error.strerror or text
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            text += "; free some room"
    return text


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"
