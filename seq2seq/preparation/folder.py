"""Folders of prepared data, created once per set of inputs."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock

from seq2seq.config import Config, with_paths
from seq2seq.data.store import PreparedData
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UnfinishedError, UserError
from seq2seq.files import (
    draft_of,
    free_space,
    remove_folder,
    replace_folder,
    sha256_of,
    try_lock,
    write_file,
)

STORE_FORMAT = 12
"""Version of the format. Raise it if prepared data or unfinished work change format."""
WORK = "work"
"""Subfolder for finished stages of an unfinished preparation."""

logger = logging.getLogger(__name__)


def load_or_prepare(
    config: Config,
    files: Sequence[Path],
    pretrained: Tokenizer | None,
    write: Callable[[Path], PreparedData],
) -> PreparedData:
    """Load the data prepared from the same options and files, or prepare them with `write`.

    write: fills a folder. The manifest of its result has the splits, and checksums of datasets
    without local files.
    """
    fingerprint, store = _fingerprint(config, files, pretrained), Path(config.data.store)
    if prepared := find_prepared(store, fingerprint):
        return PreparedData.load(prepared)

    folder = store / f"{config.name}-{fingerprint}"
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    if not try_lock(lock):
        logger.info("waiting for another process that is preparing %s", folder)
        lock.acquire()
    try:
        if not (folder / "manifest.json").exists():  # not finished by another process
            with _resumable(folder) as draft:
                data = write(draft)
                if _fingerprint(config, files, pretrained) != fingerprint:
                    raise UserError("the corpora changed during preparation; run the command again")
                _write_manifest(data, fingerprint, files)
    finally:
        lock.release()
    return PreparedData.load(folder)


def find_prepared(store: Path, fingerprint: str) -> Path | None:
    """Return the folder with this fingerprint, created by any recipe, or None."""
    manifests = sorted(store.glob(f"*-{fingerprint}/manifest.json"))
    return manifests[0].parent if manifests else None


@contextmanager
def _resumable(folder: Path) -> Iterator[Path]:
    """Yield a draft that replaces `folder`. The next command resumes an unfinished draft."""
    draft = draft_of(folder)
    resumed = (draft / WORK).exists()
    logger.info("%s %s", "resuming the preparation of" if resumed else "preparing", folder)
    draft.mkdir(exist_ok=True)
    try:
        yield draft
    except OSError as error:
        raise UnfinishedError(
            f"{folder} could not be prepared: {error} (the disk has {free_space(folder)} "
            "left); the same command resumes"
        ) from None
    except UserError as error:
        if not isinstance(error, UnfinishedError):  # corrected input has another fingerprint
            remove_folder(draft)
        raise
    replace_folder(folder, draft)
    shutil.rmtree(folder / WORK, ignore_errors=True)  # last: a draft resumes from it


def _write_manifest(data: PreparedData, fingerprint: str, files: Sequence[Path]) -> None:
    """Write the tokenizer and manifest.json."""
    folder, splits, datasets = data.folder, data.manifest["splits"], data.manifest["datasets"]
    data.tokenizer.save(folder)
    names = [name for facts in splits.values() for name in facts["files"]]
    manifest = {
        "format": STORE_FORMAT,
        "fingerprint": fingerprint,
        "inputs": [
            {"file": str(path.absolute()), "bytes": path.stat().st_size, "sha256": sha256_of(path)}
            for path in files
        ]
        + [{"dataset": name, "sha256": checksum} for name, checksum in datasets.items()],
        "tokenizer": data.tokenizer.checksum,
        "splits": splits,
        "sha256": {name: sha256_of(folder / name) for name in names},
    }
    text = json.dumps(manifest, indent=2, ensure_ascii=False)
    write_file(folder / "manifest.json", text + "\n")


def _fingerprint(config: Config, files: Sequence[Path], pretrained: Tokenizer | None) -> str:
    """Return a hash of all options and input files (path, size, time) that determine the data."""
    tokenizer = asdict(config.tokenizer)
    del tokenizer["bpe_dropout"]
    data = asdict(with_paths(config).data)
    del data["store"]
    data.pop("augment", None)
    if pretrained:
        tokenizer["models"] = pretrained.checksum
    if pretrained or data.get("temperature") == 1:  # else they determine the tokenizer
        data.pop("temperature", None)
        for corpus in data.get("train", ()):
            del corpus["weight"]
    inputs = [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    identity = json.dumps([STORE_FORMAT, config.task, data, tokenizer, inputs], sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()[:12]


def finish_stage(folder: Path, write: Callable[[Path], None]) -> None:
    """Fill a folder with `write`, unless an interrupted preparation has already finished it."""
    if folder.exists():
        return
    draft = draft_of(folder)
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    write(draft)
    replace_folder(folder, draft)
