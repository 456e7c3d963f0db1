"""Model directories: weights, their description, and the tokenizer that they speak through.

A model directory holds model.safetensors, model.json and the tokenizer's files, and needs nothing
else; it is written beside its place and moved there whole.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from seq2seq.config import Config, from_tree, to_tree
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError
from seq2seq.model.transformer import Transformer

MODEL_FORMAT = 1


@dataclass(frozen=True)
class LoadedModel:
    """A model, and what it takes to use it."""

    model: Transformer
    tokenizer: Tokenizer
    config: Config


def build_model(config: Config, tokenizer: Tokenizer) -> Transformer:
    """Return the recipe's model for these vocabularies, freshly initialised."""
    source_size = None if tokenizer.shared else tokenizer.source.size
    return Transformer(config.model, tokenizer.target.size, source_size)


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """Give a draft folder to fill; when all went well it takes the place of `folder`."""
    draft = folder.with_name(f".{folder.name}.tmp")
    old = folder.with_name(f".{folder.name}.old")
    if old.exists() and not folder.exists():  # a run was killed between the two renames below
        old.rename(folder)
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    yield draft
    for path in draft.iterdir():
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    draft.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def save_model(folder: Path, model: Transformer, tokenizer: Tokenizer, config: Config) -> None:
    """Fill a folder with everything that `load_model` needs."""
    description: dict[str, Any] = {
        "format": MODEL_FORMAT,
        "parameters": model.num_parameters(),
        "tokenizer": {
            "sha256": tokenizer.checksum,
            "source_size": tokenizer.source.size,
            "target_size": tokenizer.target.size,
        },
        "recipe": to_tree(config),
    }
    safetensors.torch.save_model(model, str(folder / "model.safetensors"))
    text = json.dumps(description, indent=2, ensure_ascii=False)
    (folder / "model.json").write_text(text + "\n", encoding="utf-8")
    tokenizer.save(folder)


def new_model_folder(folder: Path) -> Path:
    """Return `folder` as a place to write a model to; raises UserError if that would cost data."""
    folder = folder.resolve()
    if not folder.exists():
        return folder
    if not folder.is_dir():
        raise UserError(f"{folder} is a file; name a new folder")
    # Another model may be replaced, but nothing besides.
    model_files = {"model.json", "model.safetensors"}
    model_files |= {name for shared in (True, False) for name in Tokenizer.file_names(shared)}
    others = {path.name for path in folder.iterdir()} - model_files
    if others:
        raise UserError(f"{folder} exists and holds {min(others)}; name a new folder")
    return folder


def find_model(run: Path, checkpoint: str | None = None) -> Path:
    """Return the model directory meant by RUN: itself, the named checkpoint, best, or last."""
    if checkpoint is not None:
        tried = [run / checkpoint, run / "checkpoints" / checkpoint, Path(checkpoint)]
    else:
        tried = [run, run / "best", run / "last"]
    for folder in tried:
        if (folder / "model.json").is_file():
            return folder
    if not run.is_dir():
        raise UserError(f"no such run or model directory: {run}")
    missing = f"checkpoint {checkpoint!r}" if checkpoint else "a trained model"
    there = ", ".join(sorted(p.parent.name for p in run.glob("**/model.json"))) or "none"
    raise UserError(f"{run} does not hold {missing}; models there: {there}")


def describe_model(folder: Path) -> tuple[Config, str]:
    """Return the recipe and the tokenizer checksum that a model directory was written with."""
    try:
        description = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        version = description["format"]
        if version != MODEL_FORMAT:
            raise UserError(
                f"{folder} has model format {version}; this version of seq2seq reads "
                f"{MODEL_FORMAT}: install the version that wrote it"
            )
        config = from_tree(Config, description["recipe"], str(folder / "model.json"))
        return config, description["tokenizer"]["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder}/model.json cannot be read: {error}") from None


def load_model(folder: Path, device: torch.device | str | None = None) -> LoadedModel:
    """Read a model directory; raises UserError if it is damaged or its tokenizer was changed.

    device: by default the GPU, if there is one.
    """
    config, expected = describe_model(folder)
    tokenizer = Tokenizer.load(folder)
    if tokenizer.checksum != expected:
        raise UserError(
            f"the tokenizer in {folder} is not the one the model was trained with (sha256 "
            f"{tokenizer.checksum[:12]}..., expected {expected[:12]}...); put the original back"
        )
    model = build_model(config, tokenizer)
    load_weights(model, folder)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return LoadedModel(model.to(device).eval(), tokenizer, config)


def load_weights(model: Transformer, folder: Path) -> None:
    """Fill a model with the weights of a model directory."""
    try:
        safetensors.torch.load_model(model, str(folder / "model.safetensors"))
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        raise UserError(f"{folder}/model.safetensors is damaged or missing: {error}") from None
