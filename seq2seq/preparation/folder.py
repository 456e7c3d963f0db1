"""Create the folder of prepared data, once for the same inputs."""

from __future__ import annotations

import glob
import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from seq2seq.config import Config
from seq2seq.data.prepared import PreparedData
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UnfinishedError, UserError
from seq2seq.files import (
    draft_of,
    free_space,
    remove_folder,
    require_no_link,
    sha256_of,
    sync,
    write_text,
)

STORE_FORMAT = 6
"""To be raised when the format of prepared data or of unfinished work changes."""
WORK = "work"
"""Temporary folder within an unfinished preparation."""

Write = Callable[[Path], tuple[Tokenizer, dict[str, Any]]]
"""Fills a folder; returns tokenizer and manifest."""

logger = logging.getLogger(__name__)


def find_or_make(
    config: Config,
    files: Sequence[Path],
    models: str | None,
    write: Write,
    split: str | None = None,
) -> PreparedData:
    """Open the folder prepared from the same options and files, or create it with `write`.

    models: checksum of a pre-trained tokenizer. split: see `PreparedData.load`.
    """
    fingerprint, store, name = (
        _fingerprint(config, files, models),
        Path(config.data.store),
        config.name,
    )
    if made := find_prepared(store, fingerprint):
        return PreparedData.load(made, split)
    folder = store / f"{name}-{fingerprint}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        held = lock.acquire(blocking=False)
    except Timeout:
        logger.info("waiting for another process that is preparing %s", folder)
        held = lock.acquire()
    with held:
        if not (folder / "manifest.json").exists():  # else another process has finished it
            _make(folder, write, lambda: _fingerprint(config, files, models))
    for draft in folder.parent.glob(f".{glob.escape(name)}-*.tmp"):
        logger.warning(
            "%s is unfinished and belongs to other data or settings; delete it unless you want to "
            "resume that preparation",
            draft,
        )
    return PreparedData.load(folder)


def find_prepared(store: Path, fingerprint: str) -> Path | None:
    """Return the folder with this fingerprint, whichever recipe has made it; None without one."""
    made = sorted(store.glob(f"*-{glob.escape(fingerprint)}/manifest.json"))
    if not made:
        return None
    _log_found(made[0].parent)
    return made[0].parent


@cache
def _log_found(folder: Path) -> None:
    logger.info("prepared data found in %s", folder)


def _make(folder: Path, write: Write, fingerprint: Callable[[], str]) -> None:
    # Written to a draft and renamed at the end; the next command resumes an unfinished draft.
    draft = draft_of(folder)
    if not (draft / "manifest.json").exists():
        resumed = (draft / WORK).exists()
        logger.info("%s %s", "resuming the preparation of" if resumed else "preparing", folder)
        require_no_link(draft)
        draft.mkdir(exist_ok=True)
        try:
            _fill(draft, write, fingerprint)
        except KeyboardInterrupt:
            logger.info("finished work is kept in %s; the same command resumes", draft)
            raise
        except OSError as error:
            if error.filename:
                raise
            raise UnfinishedError(
                f"{folder} could not be prepared: {error.strerror or error} (the disk has "
                f"{free_space(folder)} left); the same command resumes"
            ) from None
        except UnfinishedError:
            raise
        except UserError:  # corrected input has another fingerprint
            remove_folder(draft)
            raise
    shutil.rmtree(draft / WORK, ignore_errors=True)
    sync(draft)
    draft.rename(folder)


def _fill(draft: Path, write: Write, fingerprint: Callable[[], str]) -> None:
    before = fingerprint()
    tokenizer, manifest = write(draft)
    if fingerprint() != before:
        raise UserError("the corpora changed while they were being prepared; start again")
    tokenizer.save(draft)
    manifest |= {
        "format": STORE_FORMAT,
        "tokenizer": tokenizer.checksum,
        "fingerprint": before,
        "sha256": {
            file: sha256_of(draft / file)
            for facts in manifest["splits"].values()
            for file in facts["files"]
        },
    }
    text = json.dumps(manifest, indent=2, ensure_ascii=False)
    sync(*draft.iterdir(), draft)
    write_text(draft / "manifest.json", text + "\n")


def _fingerprint(config: Config, files: Sequence[Path], models: str | None) -> str:
    """Return a hash of all options and input files (path, size, time) of the prepared data."""
    tokenizer = asdict(config.tokenizer)
    del tokenizer["bpe_dropout"]
    data = asdict(config.data)
    del data["store"]
    for corpus in data.get("train", ()):
        del corpus["weight"]
    if models:
        tokenizer["models"] = models
    inputs = []
    for path in files:
        status = path.stat()
        inputs.append([str(path.resolve()), status.st_size, status.st_mtime_ns])
    identity = json.dumps([STORE_FORMAT, config.task, data, tokenizer, inputs], sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()[:12]


def describe_files(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the manifest entries of input files."""
    return [
        {"file": str(path), "bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for path in files
    ]
