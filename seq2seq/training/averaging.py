"""Checkpoint averaging."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from seq2seq.errors import UserError
from seq2seq.folders import written_whole
from seq2seq.model.directory import load_model, new_model_folder, save_model, snapshot


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
    with written_whole(new_model_folder(into)) as draft:
        save_model(draft, snapshot(first.model), first.tokenizer, first.config)
