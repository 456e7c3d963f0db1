"""Atomically written folders: leftovers of crashes and other readers."""

from __future__ import annotations

import errno
import itertools
import os
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest
from conftest import run_recipe
from filelock import FileLock

from seq2seq.errors import UserError
from seq2seq.files import (
    SUMS_FILE,
    atomic_folder,
    atomic_link,
    draft_of,
    exclusive,
    find_damage,
    remove_folder,
    remove_leftovers,
    try_lock,
)


def write(folder: Path, text: str) -> None:
    with atomic_folder(folder) as draft:
        (draft / "file").write_text(text)


def test_a_folder_open_on_a_network_file_system_can_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS renames an open file that is removed, so its folder remains."""
    rmdir = os.rmdir

    def kept(path: str, **options: object) -> None:
        raise OSError(39, "Directory not empty", str(path))

    folder = tmp_path / "best"
    write(folder, "one")
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", kept)
        write(folder, "two")
        write(folder, "three")
        remove_folder(folder)
        remove_leftovers(tmp_path)
    assert not folder.exists()
    assert os.rmdir is rmdir
    remove_leftovers(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_run_needs_no_links(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a USB stick, where links are copies."""

    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    monkeypatch.setattr(Path, "symlink_to", refused)
    options = ("training.checkpoint_every=2", "training.keep_best=2", "training.average_last=2")
    for steps in (4, 6):
        run = run_recipe(recipe, tmp_path / "run", f"training.max_steps={steps}", *options)
    for name, folder in (("last", "checkpoints/step_6"), ("averaged", "kept/average_6")):
        assert not (run / name).is_symlink() and find_damage(run / name) is None
        assert (run / name / SUMS_FILE).read_text() == (run / folder / SUMS_FILE).read_text()


def test_a_file_among_the_leftovers_is_removed(tmp_path: Path) -> None:
    draft_of(tmp_path / uuid4().hex).touch()
    draft_of(tmp_path / "step_5").mkdir()
    write(tmp_path / "last", "one")
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def test_a_folder_is_written_by_one_process_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "average"
    with exclusive(folder), atomic_folder(folder) as draft:
        (draft / "file").write_text("one")
        second = exclusive(folder)
        with pytest.raises(UserError, match="is being written by another process"):
            second.__enter__()
        assert (draft / "file").exists()
    assert (folder / "file").read_text() == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["average"]


def test_others_may_read_a_folder_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomic_folder(tmp_path / "model") as draft:
            (draft / "weights").touch(0o600)
    finally:
        os.umask(before)
    assert (tmp_path / "model" / "weights").stat().st_mode & 0o777 == 0o640


def write_until(folder: Path, calls: int) -> None:
    """Write a folder in this process, which ends after so many calls of the system."""
    made = itertools.count()

    def killed(call: Any, *arguments: Any, **options: Any) -> Any:
        return os._exit(9) if next(made) == calls else call(*arguments, **options)

    for name in ("mkdir", "open", "fsync", "rename", "unlink", "rmdir"):
        setattr(os, name, partial(killed, getattr(os, name)))
    write(folder, "new")
    os._exit(0)


@pytest.mark.parametrize("cleaned", [True, False])
def test_a_kill_at_any_call_leaves_the_old_folder_or_the_new_one(
    tmp_path: Path, cleaned: bool
) -> None:
    """A folder can also be replaced before the next start of a run has cleaned up."""
    found = set()
    for calls in range(100):
        write(folder := tmp_path / f"step_{calls}", "old")
        if (child := os.fork()) == 0:
            write_until(folder, calls)
        finished = os.waitpid(child, 0)[1] == 0
        if cleaned:
            remove_leftovers(tmp_path)
            assert folder.exists() and not list(tmp_path.glob(".*")), calls
        if folder.exists():
            assert find_damage(folder) is None, calls
            found.add((folder / "file").read_text())
        write(folder, "newer")
        assert (folder / "file").read_text() == "newer"
        assert not list(tmp_path.glob(".step_*")), calls
        if finished:
            break
    assert finished and calls > 10 and found == {"old", "new"}


def test_a_run_s_links_replace_copies(tmp_path: Path) -> None:
    """Some programs copy what a link points to."""
    write(tmp_path / "step_5", "new")
    write(tmp_path / "last", "old")
    atomic_link(tmp_path / "last", tmp_path / "step_5")
    assert (tmp_path / "last").readlink() == Path("step_5")
    assert not list(tmp_path.glob(".*"))


def test_a_lock_that_another_user_holds_is_no_missing_lock(tmp_path: Path) -> None:
    """Only a file system without locks is used without them."""
    lock = FileLock(tmp_path / "lock")
    for number, expected in ((errno.ENOLCK, nullcontext()), (errno.EACCES, pytest.raises(OSError))):
        with patch.object(lock, "acquire", side_effect=OSError(number, "")), expected:
            assert try_lock(lock)
