"""Save, load and average the weights of model directories.

A model directory is self-contained: model.safetensors, model.json and the tokenizer's files. It is
written atomically.
"""

from __future__ import annotations

import dataclasses
from collections import ChainMap
from collections.abc import Mapping, Sequence
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from seq2seq.config import Config
from seq2seq.data.extension import old_ids
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError
from seq2seq.files import atomic_folder
from seq2seq.formats.model_directory import (
    WEIGHTS_FILE,
    describe_model,
    is_exported,
    require_undamaged,
    save_description,
)
from seq2seq.formats.pretrained import find_weights, from_pretrained, is_pretrained
from seq2seq.machine.devices import default_device
from seq2seq.model.transformer import Network, build_model


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A model with its tokenizer and recipe."""

    model: Network
    tokenizer: Tokenizer
    config: Config


def snapshot(model: Network) -> dict[str, Tensor]:
    """Return a copy of a model's weights in CPU memory; tied weights occur once."""
    return {name: p.detach().to("cpu", copy=True) for name, p in model.named_parameters()}


def save_model(
    folder: Path, weights: Mapping[str, Tensor], tokenizer: Tokenizer, config: Config
) -> None:
    """Write weights, model.json and the tokenizer's files to a folder."""
    safetensors.torch.save_file(dict(weights), str(folder / WEIGHTS_FILE))
    save_description(folder, sum(x.numel() for x in weights.values()), tokenizer, config)


def load_model(
    folder: Path, device: torch.device | str | None = None, vocabulary: Tokenizer | None = None
) -> LoadedModel:
    """Read a model directory; raises UserError if a file is damaged or was changed.

    device: by default the GPU, if there is one. vocabulary: with other pieces than the folder's.
    """
    if not is_pretrained(folder):
        require_undamaged(folder)
    config, tokenizer = describe_model(folder)
    tokenizer = vocabulary or tokenizer
    with torch.device("meta"):  # allocates no memory before the shapes are checked
        model = build_model(config, tokenizer)
    load_weights(model, folder, vocabulary)
    return LoadedModel(model.to(device or default_device()).eval(), tokenizer, config)


@torch.no_grad()
def load_weights(model: Network, folder: Path, tokenizer: Tokenizer | None = None) -> None:
    """Load the weights of a model directory into a model; raises UserError if they do not fit.

    Parameters on the device `meta` are allocated in CPU memory. tokenizer: of the model, if it may
    have other pieces than the folder's.
    """
    path, parameters = folder / WEIGHTS_FILE, dict(model.named_parameters())
    pretrained = is_pretrained(folder)
    paths = find_weights(folder) if pretrained else [path]
    try:
        weights = dict(ChainMap(*map(safetensors.torch.load_file, paths or [path])))
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        if is_exported(folder):
            raise UserError(
                f"{folder} is exported to CTranslate2, and only `translate` and `serve` can use it"
            ) from None
        reason = " ".join(str(error).split())
        raise UserError(f"{path} is damaged or missing: {reason:.300}") from None
    if pretrained:
        weights = from_pretrained(model, weights)
    if tokenizer and tokenizer.checksum != (old := Tokenizer.load(folder)).checksum:
        weights = with_vocabulary(weights, old, tokenizer)
    expected = {name: tuple(x.shape) for name, x in parameters.items()}
    saved = {name: tuple(x.shape) for name, x in weights.items()}
    for name in [*expected, *saved]:
        if expected.get(name) != saved.get(name):
            raise UserError(
                f"{path}: the shape of {name} is {saved.get(name, 'missing')}, but "
                f"{expected.get(name, 'missing')} in the model that the folder describes"
            )
    for name, parameter in parameters.items():
        if parameter.is_meta:
            weight = weights[name].to(parameter.dtype, copy=True)  # not a view of the mapped file
            torch.utils.swap_tensors(parameter, nn.Parameter(weight))
        else:
            parameter.copy_(weights[name])


def with_vocabulary(
    weights: Mapping[str, Tensor], old: Tokenizer, new: Tokenizer
) -> dict[str, Tensor]:
    """Return the weights with a row for each piece of another vocabulary; see `old_ids`."""
    changed = dict(weights)
    source, target = zip(old.translation_vocabularies, new.translation_vocabularies, strict=True)
    for name, side in (
        ("source_embedding.weight", source),
        ("target_embedding.weight", target),
        ("output.weight", target),
        ("output.bias", target),
    ):
        if (weight := weights.get(name)) is not None:
            ids = old_ids(*side)
            rows, mean = weight[[row[0] if row else 0 for row in ids]], weight.mean(dim=0)
            for i, row in enumerate(ids):
                if len(row) != 1:
                    rows[i] = weight[row].mean(dim=0) if row else mean
            changed[name] = rows
    return changed


def write_seq2seq(model: Network, tokenizer: Tokenizer, config: Config, folder: Path) -> None:
    """Write a model directory."""
    save_model(folder, snapshot(model), tokenizer, config)


def average_models(folders: Sequence[Path], into: Path) -> None:
    """Write a model directory with the averaged weights of `folders`, summed in float64."""
    first = load_model(folders[0], "cpu")
    sums = {name: weight.double() for name, weight in snapshot(first.model).items()}
    for folder in folders[1:]:
        for name, weight in snapshot(load_model(folder, "cpu").model).items():
            sums[name] += weight
    means = {name: (total / len(folders)).float() for name, total in sums.items()}
    with atomic_folder(into) as draft:
        save_model(draft, means, first.tokenizer, first.config)
