"""Folders that are written whole: what a crash or another reader has left stops nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from seq2seq.folders import damage, draft_of, remove_whole, set_aside, sweep, written_whole


def write(folder: Path, text: str) -> None:
    with written_whole(folder) as draft:
        (draft / "file").write_text(text)


def test_what_was_set_aside_and_left_does_not_stop_the_next_write(tmp_path: Path) -> None:
    folder = tmp_path / "best"
    for text in ("one", "two"):
        write(folder, text)
        shutil.copytree(folder, set_aside(folder))
    write(folder, "three")
    assert (folder / "file").read_text() == "three" and damage(folder) is None
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def test_a_folder_that_is_read_over_a_network_can_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS keeps a removed file that is open, under another name, and with it the folder."""
    rmdir = os.rmdir

    def kept(path: str, **options: object) -> None:
        raise OSError(39, "Directory not empty", str(path))

    folder = tmp_path / "best"
    write(folder, "one")
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", kept)
        write(folder, "two")
        write(folder, "three")
        remove_whole(folder)
        sweep(tmp_path)
    assert not folder.exists() and not set_aside(folder).exists()
    assert os.rmdir is rmdir
    sweep(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_among_the_leftovers_is_removed(tmp_path: Path) -> None:
    draft_of(tmp_path / "mark").touch()
    draft_of(tmp_path / "step_5").mkdir()
    write(tmp_path / "last", "one")
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["last"]
