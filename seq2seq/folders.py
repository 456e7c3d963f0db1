"""Folders that are written whole or not at all, and that show it when a byte of them changes."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import safetensors

from seq2seq.errors import UserError

SUMS_FILE = "SHA256SUMS"
"""One line for each file of the folder, as `sha256sum --check` reads it."""


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """Give a draft folder to fill; when all went well it takes the place of `folder`.

    Whatever stops the process at any moment, `folder` is the old one or the new one (the old one
    perhaps under the name that `set_aside` gives). Raises UserError where the disk takes no more,
    and gives the room back.
    """
    draft, old = draft_of(folder), set_aside(folder)
    recover(folder)
    shutil.rmtree(draft, ignore_errors=True)
    if old.exists():  # a crash, or a network file system, has kept it from being removed
        remove_whole(old)
    try:
        draft.mkdir(parents=True)
        yield draft
        write_sums(draft)
        sync(*draft.iterdir(), draft)
    except (OSError, safetensors.SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        reason = error.strerror if isinstance(error, OSError) else None
        raise UserError(
            f"{folder} could not be written: {reason or error} (the disk has "
            f"{free_room(folder)} left)"
        ) from None
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    if folder.exists():
        folder.rename(old)
    draft.rename(folder)
    sync(folder.parent)
    if old.exists():
        remove_whole(old)


def write_sums(folder: Path) -> None:
    """Write the checksum of every file in a folder."""
    files = sorted(path for path in folder.iterdir() if path.name != SUMS_FILE)
    sums = "".join(f"{sha256_of(path)}  {path.name}\n" for path in files)
    (folder / SUMS_FILE).write_text(sums, encoding="utf-8")


def damage(folder: Path) -> str | None:
    """Say what is wrong with a folder that `written_whole` wrote; None if every byte is there."""
    try:
        lines = (folder / SUMS_FILE).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return f"{SUMS_FILE} is missing or unreadable"
    sums = {name: expected for expected, _, name in (line.partition("  ") for line in lines)}
    there = {path.name for path in folder.iterdir()} - {SUMS_FILE}
    for name in sorted(sums.keys() | there):
        if name not in sums:
            return f"{name} is not in {SUMS_FILE}"
        if name not in there:
            return f"{name or SUMS_FILE} is missing"
        try:
            if sha256_of(folder / name) != sums[name]:
                return f"{name} is not what was written"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
    return None


def recover(folder: Path) -> None:
    """Put a folder back in its place that a crash caught between two renames."""
    if set_aside(folder).exists() and not folder.exists():
        set_aside(folder).rename(folder)


def remove_whole(folder: Path) -> None:
    """Remove a folder, so that no part of it stays under its name.

    Files that somebody reads over a network may stay, under a name that `sweep` looks for.
    """
    leftover = draft_of(folder.with_name(uuid4().hex))
    folder.rename(leftover)
    shutil.rmtree(leftover, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Finish in a folder of folders what a crash interrupted."""
    for old in parent.glob(".*.old"):
        recover(parent / old.name.removeprefix(".").removesuffix(".old"))
    for leftover in (*parent.glob(".*.old"), *parent.glob(".*.tmp")):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink()


def copy_linked(source: Path, names: Sequence[str], folder: Path) -> None:
    """Fill a folder with files of another, as hard links where the file system has them."""
    for name in names:
        try:
            os.link(source / name, folder / name)
        except OSError:
            shutil.copy2(source / name, folder / name)


def require_room(folder: Path, num_bytes: int) -> None:
    """Raise UserError if the disk of a folder has not so many bytes left."""
    free = _free_bytes(folder)
    if free < num_bytes:
        raise UserError(
            f"no room for {folder}: it takes {_megabytes(num_bytes)}, the disk has "
            f"{_megabytes(free)} left: free {_megabytes(num_bytes - free)} more"
        )


def free_room(folder: Path) -> str:
    """Say how much the disk of a folder has left."""
    return _megabytes(_free_bytes(folder))


def sha256_of(path: Path) -> str:
    """Return a file's checksum."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sync(*paths: Path) -> None:
    """Have files, and the entries of folders, on the disk itself."""
    for path in paths:
        for access in (os.O_RDONLY, os.O_RDWR):  # Windows syncs only what may be written to
            try:
                descriptor = os.open(path, access)
            except OSError:  # Windows opens no folders
                continue
            try:
                os.fsync(descriptor)
                break
            except OSError as error:
                if error.errno != errno.EBADF:
                    raise
            finally:
                os.close(descriptor)


def draft_of(folder: Path) -> Path:
    """Where a folder is written before it takes its place."""
    return folder.with_name(f".{folder.name}.tmp")


def set_aside(folder: Path) -> Path:
    """Where a folder stands while another takes its place."""
    return folder.with_name(f".{folder.name}.old")


def _free_bytes(folder: Path) -> int:
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(place).free


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"
