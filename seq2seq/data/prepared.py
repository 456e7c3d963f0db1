"""Folders of prepared data, made once for the same inputs."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from seq2seq.config import Config
from seq2seq.data.store import Store
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UnfinishedError, UserError
from seq2seq.folders import draft_of, free_space, remove_whole, sha256_of, sync

STORE_FORMAT = 4
"""To be raised when the format of prepared data or of unfinished work changes."""
WORK = "work"
"""Temporary folder within an unfinished preparation."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreparedData:
    """A prepared folder: tokenizer, splits (`train`, `dev` and perhaps `test`) and manifest.

    A split is a store of pairs, or ids of a part of a text.
    """

    folder: Path
    tokenizer: Tokenizer
    manifest: dict[str, Any]

    @classmethod
    def load(cls, folder: Path) -> PreparedData:
        """Open a prepared folder and verify its checksums."""
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        tokenizer = Tokenizer.load(folder)
        if tokenizer.checksum != manifest["tokenizer"]:
            raise UserError(
                f"the tokenizer in {folder} is not the one that its data were made with; "
                "delete the folder to prepare the data again"
            )
        for name, checksum in manifest["sha256"].items():
            path = folder / name
            if not path.exists() or sha256_of(path) != checksum:
                raise UserError(
                    f"{path} has changed since it was prepared; delete {folder} to prepare it again"
                )
        return cls(folder, tokenizer, manifest)

    def facts(self, split: str) -> dict[str, Any]:
        """Return the manifest entry of `train`, `dev` or `test`."""
        if split not in self.manifest["splits"]:
            raise UserError(
                f"the recipe has no {split} set: name one with data.{split} or hold one out with "
                f"data.{split}_size (data.{split}_share for a language model)"
            )
        return self.manifest["splits"][split]

    def store(self, split: str) -> Store:
        """Open the pairs of `train`, `dev` or `test`."""
        return Store([self.folder / file for file in self.facts(split)["files"]])

    def checksum(self, split: str) -> str:
        """Return the checksum of a split."""
        sums = [self.manifest["sha256"][file] for file in self.facts(split)["files"]]
        return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()

    def tokens(self, split: str) -> NDArray[np.unsignedinteger]:
        """Memory-map the ids of `train`, `dev` or `test` of a text."""
        facts = self.facts(split)
        [file] = facts["files"]
        return np.memmap(self.folder / file, dtype=facts["dtype"], mode="r")


def find_or_make(
    config: Config, fingerprint: str, write: Callable[[Path], tuple[Tokenizer, dict[str, Any]]]
) -> PreparedData:
    """Open the prepared folder with this fingerprint, or create it with `write`.

    Another recipe may have created it. write: fills a folder, and returns tokenizer and manifest.
    """
    store, name = Path(config.data.store), Path(config.name).name
    made = sorted(store.glob(f"*-{fingerprint}/manifest.json"))
    folder = made[0].parent if made else store / f"{name}-{fingerprint}"
    if made:
        logger.info("prepared data found in %s", folder)
        return PreparedData.load(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        held = lock.acquire(blocking=False)
    except Timeout:
        logger.info("waiting for another process that is preparing %s", folder)
        held = lock.acquire()
    with held:
        if not (folder / "manifest.json").exists():  # else another process has finished it
            _make(folder, fingerprint, write)
    for draft in folder.parent.glob(f".{name}-*.tmp"):
        logger.warning(
            "%s is unfinished and belongs to other data or settings; delete it unless you want to "
            "resume that preparation",
            draft,
        )
    return PreparedData.load(folder)


def _make(
    folder: Path, fingerprint: str, write: Callable[[Path], tuple[Tokenizer, dict[str, Any]]]
) -> None:
    # Written to a draft and renamed at the end; the next command resumes an unfinished draft.
    draft = draft_of(folder)
    if not (draft / "manifest.json").exists():
        resumed = (draft / WORK).exists()
        logger.info("%s %s", "resuming the preparation of" if resumed else "preparing", folder)
        draft.mkdir(exist_ok=True)
        try:
            _fill(draft, fingerprint, write)
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
            remove_whole(draft)
            raise
    shutil.rmtree(draft / WORK, ignore_errors=True)
    sync(draft)
    draft.rename(folder)


def _fill(
    draft: Path, fingerprint: str, write: Callable[[Path], tuple[Tokenizer, dict[str, Any]]]
) -> None:
    tokenizer, manifest = write(draft)
    tokenizer.save(draft)
    manifest |= {
        "format": STORE_FORMAT,
        "tokenizer": tokenizer.checksum,
        "fingerprint": fingerprint,
        "sha256": {
            file: sha256_of(draft / file)
            for facts in manifest["splits"].values()
            for file in facts["files"]
        },
    }
    text = json.dumps(manifest, indent=2, ensure_ascii=False)
    unnamed = draft / "manifest.tmp"
    unnamed.write_text(text + "\n", encoding="utf-8")
    sync(*draft.iterdir(), draft)
    unnamed.replace(draft / "manifest.json")


def fingerprint_of(config: Config, files: Sequence[Path], models: str | None) -> str:
    """Return a hash of all options and input files (path, size, time) of the prepared data.

    models: checksum of a pre-trained tokenizer.
    """
    tokenizer = asdict(config.tokenizer)
    del tokenizer["bpe_dropout"]
    data = asdict(config.data)
    del data["store"]
    for corpus in data["train"]:
        del corpus["weight"]
    if models:
        tokenizer["models"] = models
    inputs = []
    for path in files:
        status = path.stat()
        inputs.append([str(path.resolve()), status.st_size, status.st_mtime_ns])
    identity = json.dumps([STORE_FORMAT, config.task, data, tokenizer, inputs], sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()[:12]


def describe_inputs(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the manifest entries of input files."""
    return [
        {"file": str(path), "bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for path in files
    ]
