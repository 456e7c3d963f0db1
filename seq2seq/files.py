"""Atomic writing of files and folders, and checksums to detect damage."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO
from uuid import uuid4

import safetensors
from filelock import FileLock, Timeout

from seq2seq.errors import UserError, named_output

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
"""Error numbers of a file system without locks."""
SUMS_FILE = "SHA256SUMS"
"""Checksums of the files of a folder, in the format of `sha256sum --check`."""

_LEFTOVER = re.compile(
    r"\.(?P<name>step_\d+|average_\d+|best|last|averaged|[0-9a-f]{32})(?P<old>\.old)?\.tmp"
)
"""Names that a crash may leave in a run directory. Other hidden files belong to the user."""

logger = logging.getLogger(__name__)


def write_file(path: Path, content: bytes | str) -> None:
    """Write a file atomically. It is always new: targets of existing links are not changed."""
    draft = draft_of(path)
    draft.unlink(missing_ok=True)
    try:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
        sync(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def output_file(output: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary FILE.part. It replaces FILE if the block succeeds, else it is kept.

    Pipes and devices are written directly. Raises UserError if another process is writing FILE.
    """
    is_file = not output.exists() or output.is_file()
    path = part_of(output) if is_file else output
    with exclusive(output.resolve()) if is_file else nullcontext():
        with named_output(output):
            if is_file:  # a new file: the target of an existing link is not changed
                path.unlink(missing_ok=True)
            stream = path.open("wb")
        try:
            yield stream
            with named_output(output):
                stream.flush()
                if is_file:
                    os.fsync(stream.fileno())
        finally:
            with suppress(OSError):  # closing writes buffered data again
                stream.close()
        if is_file:
            path.replace(output.resolve())


def part_of(output: Path) -> Path:
    """Return the temporary path that `output_file` writes to."""
    target = output.resolve()
    return target.with_name(f"{target.name}.part")


def require_writable(output: Path, read: Collection[Path]) -> None:
    """Raise UserError if an output cannot be written or is one of the files to read.

    Call this before the work of a command starts.
    """
    folder = output.resolve().parent
    if output.is_dir():
        raise UserError(f"{output} cannot be written: it is a folder")
    if not folder.is_dir():
        raise UserError(f"{output} cannot be written: there is no folder {folder}")
    if not os.access(output if output.exists() else folder, os.W_OK):
        raise UserError(f"{output} cannot be written: permission denied")
    for path in (output, part_of(output)):
        if path.is_file() and any(file.exists() and path.samefile(file) for file in read):
            raise UserError(f"{path} would be overwritten while it is read; name another output")


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder. It replaces `folder` if the block succeeds.

    If `folder` exists, it is complete, even after a kill. Raises UserError if the disk is full, and
    frees the space.
    """
    draft = draft_of(folder)
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True)
        yield draft
        # safetensors creates files that other users cannot read.
        for path in filter(Path.is_file, draft.iterdir()):
            with suppress(PermissionError):
                path.chmod(draft.stat().st_mode & 0o666)
        write_sums(draft)
        replace_folder(folder, draft)
    except (OSError, safetensors.SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"{folder} could not be written: {reason} (the disk has {free_space(folder)} left)"
        ) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def replace_folder(folder: Path, draft: Path) -> None:
    """Replace a folder by its finished draft, after flushing the draft to the disk.

    After a kill between the renames, `remove_leftovers` puts the old folder back.
    """
    sync(*draft.iterdir(), draft)
    old = draft_of(folder.with_name(f"{folder.name}.old"))
    if folder.exists():
        remove_folder(old)
        folder.rename(old)
    draft.rename(folder)
    sync(folder.parent)
    remove_folder(old)


def try_lock(lock: FileLock) -> bool:
    """Try to acquire a lock; return success. Warns and returns True if locks are unsupported."""
    file = Path(lock.lock_file)
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return False
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in NO_LOCKS:
            raise
        logger.warning("cannot lock %s (%s): do not run a second command there", file, error)
    return True


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Lock a folder within this block. Raises UserError if another process is writing it."""
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    if not try_lock(lock):
        raise UserError(f"{folder} is being written by another process; name another output")
    try:
        yield
    finally:
        if lock.is_locked:
            Path(lock.lock_file).unlink(missing_ok=True)
            lock.release()


def write_sums(folder: Path) -> None:
    """Write the checksums of all files in a folder."""
    sums = [f"{sha256_of(folder / name)}  {name}\n" for name in sorted(_file_names(folder))]
    (folder / SUMS_FILE).write_text("".join(sums), encoding="utf-8")


def read_sums(folder: Path) -> dict[str, str] | None:
    """Return the checksums written by `write_sums`, by file name, or None if unreadable."""
    try:
        lines = (folder / SUMS_FILE).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    return {name: expected for expected, _, name in (line.partition("  ") for line in lines)}


def find_damage(folder: Path, optional: Collection[str] = ()) -> str | None:
    """Return a description of the damage to a folder written by `atomic_folder`, or None.

    optional: names of files that may have been added or changed.
    """
    if (sums := read_sums(folder)) is None:
        return f"{SUMS_FILE} is missing or unreadable"
    for name in sorted((sums.keys() | _file_names(folder)).difference(optional)):
        if name not in sums:
            return f"{name} is not in {SUMS_FILE}"
        try:
            if sha256_of(folder / name) != sums[name]:
                return f"{name} has changed since it was written"
        except OSError as error:
            return f"{name or SUMS_FILE} cannot be read: {error.strerror}"
    return None


def _file_names(folder: Path) -> set[str]:
    """Return the names of the files that have checksums: hidden files were added later."""
    files = (path for path in folder.iterdir() if not path.is_dir())
    return {path.name for path in files if not path.name.startswith(".")} - {SUMS_FILE}


def remove_folder(folder: Path) -> None:
    """Remove a folder atomically, if it exists, by renaming it first.

    `remove_leftovers` removes files that remain because a network file system has them open.
    """
    leftover = draft_of(folder.with_name(uuid4().hex))
    with suppress(FileNotFoundError):
        folder.rename(leftover)
    shutil.rmtree(leftover, ignore_errors=True)


def remove_leftovers(parent: Path) -> None:
    """Remove what a crash left in a folder, and put back folders that were being replaced."""
    names = [path.name for path in parent.glob(".*")]
    for match in filter(None, map(_LEFTOVER.fullmatch, names)):
        leftover, folder = parent / match[0], parent / match["name"]
        if match["old"] and not folder.exists():
            leftover.rename(folder)
        elif leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def atomic_link(link: Path, target: Path) -> None:
    """Make `link` a relative symbolic link to a folder, atomically, or a copy if links fail."""
    draft = draft_of(link)
    draft.unlink(missing_ok=True)
    try:
        draft.symlink_to(os.path.relpath(target, link.parent), target_is_directory=True)
        if link.is_dir() and not link.is_symlink():  # some programs replace links by copies
            remove_folder(link)
        draft.replace(link)
    except OSError:  # a file system without symbolic links
        with atomic_folder(link) as copy:
            shutil.copytree(target, copy, dirs_exist_ok=True)
    sync(link.parent)


def free_space(folder: Path) -> str:
    """Return the free space on the disk of a folder, such as `120.0 MB`."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return f"{shutil.disk_usage(existing).free / 1e6:,.1f} MB"


def sha256_of(path: Path) -> str:
    """Return the SHA-256 checksum of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sync(*paths: Path) -> None:
    """Flush files and folder entries to the disk. Missing paths are skipped."""
    for path in filter(Path.exists, paths):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def draft_of(folder: Path) -> Path:
    """Return the temporary path of a file or folder: it is renamed when complete."""
    return folder.with_name(f".{folder.name}.tmp")
