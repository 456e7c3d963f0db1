"""Save, load and average model directories.

A model directory is self-contained: model.safetensors, model.json and the tokenizer's files. It is
written atomically.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from seq2seq.config import Config, to_tree
from seq2seq.data.tokenizer import TOKENIZER_FILES, Tokenizer
from seq2seq.errors import UserError
from seq2seq.folders import SUMS_FILE, damage, draft_of, written_file, written_whole
from seq2seq.model.cache import AttentionHeads
from seq2seq.model.classifier import Classifier
from seq2seq.model.language_model import LanguageModel
from seq2seq.model.network import Network
from seq2seq.model.saved import MODEL_FILE, MODEL_FORMAT, describe_model
from seq2seq.model.transformer import Transformer

WEIGHTS_FILE = "model.safetensors"
MODEL_FILES = (WEIGHTS_FILE, MODEL_FILE, *TOKENIZER_FILES)
"""The files of a model directory, except for the checksums."""
HEADS_FILE = "alignment.json"
OPTIONAL_FILES = (HEADS_FILE,)
"""Files that are added to a model directory later."""


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A model with its tokenizer and recipe."""

    model: Network
    tokenizer: Tokenizer
    config: Config
    heads: AttentionHeads | None = None
    """The heads that align words, if they have been chosen."""


def build_model(config: Config, tokenizer: Tokenizer) -> Network:
    """Return a newly initialised model of the recipe for these vocabularies."""
    if config.task == "language_model":
        return LanguageModel(config.model, tokenizer.target.size)
    if config.task == "classification":
        return Classifier(config.model, tokenizer.source.size, tokenizer.target.size)
    source_size = None if tokenizer.shared else tokenizer.source.size
    return Transformer(config.model, tokenizer.target.size, source_size)


def snapshot(model: Network) -> dict[str, Tensor]:
    """Return a copy of a model's weights in main memory; tied weights occur once."""
    return {name: p.detach().to("cpu", copy=True) for name, p in model.named_parameters()}


def save_model(
    folder: Path, weights: Mapping[str, Tensor], tokenizer: Tokenizer, config: Config
) -> None:
    """Write everything that `load_model` needs to a folder."""
    description: dict[str, Any] = {
        "format": MODEL_FORMAT,
        "parameters": sum(tensor.numel() for tensor in weights.values()),
        "tokenizer": {
            "sha256": tokenizer.checksum,
            "source_size": tokenizer.source.size,
            "target_size": tokenizer.target.size,
        },
        "recipe": to_tree(config),
    }
    safetensors.torch.save_file(dict(weights), str(folder / WEIGHTS_FILE))
    text = json.dumps(description, indent=2, ensure_ascii=False)
    (folder / MODEL_FILE).write_text(text + "\n", encoding="utf-8")
    tokenizer.save(folder)


def load_model(folder: Path, device: torch.device | str | None = None) -> LoadedModel:
    """Read a model directory; raises UserError if it is damaged or its tokenizer was changed.

    device: defaults to the GPU, if there is one.
    """
    config, expected = describe_model(folder)
    require_whole(folder)
    tokenizer = Tokenizer.load(folder)
    if tokenizer.checksum != expected:
        raise UserError(
            f"the tokenizer in {folder} is not the one the model was trained with (sha256 "
            f"{tokenizer.checksum[:12]}..., expected {expected[:12]}...); put the original back"
        )
    model = build_model(config, tokenizer)
    load_weights(model, folder)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return LoadedModel(model.to(device).eval(), tokenizer, config, load_heads(folder))


def save_heads(folder: Path, heads: AttentionHeads) -> None:
    """Add the heads that align words to a model directory."""
    folder = folder.resolve()
    # Beside the folder, so that a crash leaves nothing in it.
    draft = draft_of(folder.with_name(f"{folder.name}.{HEADS_FILE}"))
    with written_file(folder / HEADS_FILE, draft) as stream:
        stream.write(json.dumps(dataclasses.asdict(heads)).encode() + b"\n")


def load_heads(folder: Path) -> AttentionHeads | None:
    """Read the heads that align words; None if they have not been chosen."""
    path = folder / HEADS_FILE
    if not path.exists():
        return None
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        heads = tuple((int(layer), int(head)) for layer, head in tree["heads"])
        return AttentionHeads(heads, int(tree["shift"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read: {error}; remove it") from None


def require_whole(folder: Path) -> None:
    """Raise UserError if a file of a model directory has changed since it was written."""
    if (folder / SUMS_FILE).exists() and (problem := damage(folder, OPTIONAL_FILES)):
        raise UserError(f"{folder} is damaged: {problem}; use another checkpoint")


def load_weights(model: Network, folder: Path) -> None:
    """Load the weights of a model directory into a model."""
    try:
        safetensors.torch.load_model(model, str(folder / WEIGHTS_FILE))
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        raise UserError(f"{folder}/{WEIGHTS_FILE} is damaged or missing: {error}") from None


def average_models(folders: Sequence[Path], into: Path) -> None:
    """Write a model directory with the mean of the weights of others, summed in float64."""
    first = load_model(folders[0], "cpu")
    with torch.no_grad():
        sums = [parameter.double() for parameter in first.model.parameters()]
        for folder in folders[1:]:
            other = load_model(folder, "cpu")
            if other.tokenizer.checksum != first.tokenizer.checksum:
                raise UserError(f"{folder} and {folders[0]} have different tokenizers")
            for total, parameter in zip(sums, other.model.parameters(), strict=True):
                total += parameter
        for parameter, total in zip(first.model.parameters(), sums, strict=True):
            parameter.copy_(total / len(folders))
    with written_whole(_new_folder(into)) as draft:
        save_model(draft, snapshot(first.model), first.tokenizer, first.config)


def _new_folder(folder: Path) -> Path:
    """Return the folder to write a model to; raises UserError if that would overwrite data."""
    folder = folder.resolve()
    if not folder.exists():
        return folder
    if not folder.is_dir():
        raise UserError(f"{folder} is a file; name a new folder")
    # Another model may be replaced, but no other files.
    others = {path.name for path in folder.iterdir()} - {*MODEL_FILES, *OPTIONAL_FILES, SUMS_FILE}
    if others:
        raise UserError(f"{folder} exists and holds {min(others)}; name a new folder")
    return folder
