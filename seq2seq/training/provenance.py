"""Record versions, commit, data, seed and hardware of each start of a run."""

from __future__ import annotations

import json
import logging
import os
import platform
import subprocess
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from seq2seq.config import Config
from seq2seq.data.prepared import PreparedData
from seq2seq.machine.precision import Precision
from seq2seq.machine.processor import describe_device
from seq2seq.model.saved import STARTS_FILE

PACKAGES = (
    "seq2seq", "torch", "sentencepiece", "sacrebleu", "datasets", "accelerate", "safetensors",
    "numpy",
)  # fmt: skip

logger = logging.getLogger(__name__)


def record_start(
    run: Path,
    config: Config,
    data: PreparedData,
    accelerator: Accelerator,
    precision: Precision,
    step: int,
) -> None:
    """Append a line to starts.jsonl; warn if a resumed run changes its precision."""
    before = last_start(run).get("precision")
    if step and before not in (None, precision):
        logger.warning(
            "%s was trained in %s so far, and resumes in %s because of this machine or the recipe",
            run,
            before,
            precision,
        )
    record = {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "step": step,
        "command": sys.argv,
        "commit": _git_commit(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "device": describe_device(accelerator.device),
        "precision": precision,
        "processes": accelerator.num_processes,
        "threads": torch.get_num_threads(),
        "seed": config.training.seed,
        "data": data.manifest,
    }
    with (run / STARTS_FILE).open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(record, ensure_ascii=False) + "\n")


def corpus_files(manifest: dict[str, Any]) -> list[Path]:
    """Return the files that prepared data were made of, by their manifest."""
    return [Path(each["file"]) for each in manifest["inputs"] if "file" in each]


def last_start(run: Path) -> dict[str, Any]:
    """Return the last line of starts.jsonl; {} if there is none or a crash truncated it."""
    try:
        lines = (run / STARTS_FILE).read_text(encoding="utf-8").splitlines()
        return dict(json.loads(lines[-1]))
    except (OSError, ValueError, TypeError, IndexError):
        return {}


def _git_commit() -> str | None:
    """Return the commit of the running code, with a plus if files are modified."""
    folder = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--dirty=+",
             "--exclude=*"],
            capture_output=True, text=True, timeout=10, check=True,
            env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"},
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
