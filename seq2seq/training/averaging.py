"""Checkpoint averaging."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from seq2seq.config.saved import find_model
from seq2seq.errors import UserError
from seq2seq.folders import written_whole
from seq2seq.model.directory import load_model, new_model_folder, save_model, snapshot
from seq2seq.training.checkpoint import checkpoints, load_progress, regular_checkpoints


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


def last_checkpoints(run: Path, count: int) -> list[Path]:
    """Return the last `count` regular checkpoints; raises UserError if there are fewer.

    Checkpoints written because of a signal do not count: other runs do not have them.
    """
    _checkpoints_of(run)
    found = regular_checkpoints(run)
    if len(found) < count:
        raise UserError(
            f"{run} holds {len(found)} regular checkpoints, fewer than the {count} to average: "
            "take fewer with --last, or write more (training.checkpoint_every) and keep them "
            "(training.keep_last)"
        )
    return found[-count:]


def best_models(run: Path, count: int) -> list[Path]:
    """Return the `count` best models of a run; raises UserError if there are fewer."""
    found = _checkpoints_of(run)
    kept = load_progress(found[-1]).kept if found else []
    if not kept:
        raise UserError(f"{run} has not been validated yet: there is no best model")
    if len(kept) < count:
        raise UserError(
            f"{run} keeps {len(kept)} of its best models, fewer than the {count} to average; take "
            "fewer with --best, or train with a larger training.keep_best"
        )
    return [run / "kept" / f"step_{step}" for _, step in kept[:count]]


def _checkpoints_of(run: Path) -> list[Path]:
    found = checkpoints(run)
    if not found:
        find_model(run)  # raises if RUN is not a run
    return found
