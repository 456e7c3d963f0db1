"""Checkpoints: a model directory plus everything that training needs to go on."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from seq2seq.errors import UserError
from seq2seq.folders import damage
from seq2seq.model.directory import load_weights
from seq2seq.model.network import Network

PROGRESS_FILE = "training.json"

logger = logging.getLogger(__name__)


@dataclass
class Progress:
    """How far a run has come; `(epoch, offset)` is its place in the data.

    There is no random state to keep: what is random in an update follows from seed, update and
    process.
    """

    step: int = 0
    """Updates done, those skipped included."""
    epoch: int = 0
    offset: int = 0
    """Sentences of this epoch's order that are done."""
    minutes: float = 0.0
    """Spent so far, over all the run's starts."""
    skipped: int = 0
    """Updates whose gradient was not finite."""
    skipped_in_row: int = 0
    best_score: float | None = None
    """Of the model in best/: its BLEU or accuracy, or its negated nll; higher is better."""
    kept: list[tuple[float, int]] = field(default_factory=list)
    """Validation score and update of the models in kept/, the best first."""
    validations_since_best: int = 0
    validated: int = -1
    """Update of the last validation."""
    averaged: int = -1
    """Update of the last average of checkpoints."""
    regular: bool = True
    """Whether this checkpoint came when it was due; a signal's is not kept, nor averaged."""
    interval: list[float] = field(default_factory=list)
    """What was summed up since the last log step."""
    data: str = ""
    """SHA-256 of the training data that the place is in."""

    def is_best(self, score: float) -> bool:
        """Whether a model of this score is better than all before it; one without (NaN) never."""
        return not math.isnan(score) and (self.best_score is None or not self.best_score >= score)


def checkpoints(run: Path) -> list[Path]:
    """Return a run's checkpoints, the oldest first, as they are named; some may be damaged."""
    found = [path for path in run.glob("checkpoints/step_*") if step_of(path) is not None]
    return sorted(found, key=lambda path: step_of(path) or 0)


def step_of(folder: Path) -> int | None:
    """Return the update that a checkpoint is named after; None for anything else."""
    number = folder.name.removeprefix("step_")
    return int(number) if number.isdecimal() and folder.is_dir() else None


def regular_checkpoints(run: Path) -> list[Path]:
    """Return the checkpoints that came when they were due, not because of a signal."""
    return [folder for folder in checkpoints(run) if is_regular(folder)]


def is_regular(folder: Path) -> bool | None:
    """Whether a checkpoint came when it was due; None where its training.json is damaged."""
    try:
        return load_progress(folder).regular
    except UserError:
        return None


def last_good_checkpoint(run: Path) -> Path | None:
    """Return the newest checkpoint whose every byte is as it was written; name the others."""
    found = checkpoints(run)
    for folder in reversed(found):
        fault = damage(folder)
        if fault is None:
            return folder
        logger.warning("%s is damaged: %s; looking for the one before it", folder, fault)
    if found:
        raise UserError(
            f"no checkpoint of {run} is whole; put one back from a copy, or delete "
            f"{run / 'checkpoints'} to begin anew"
        )
    return None


def save_state(folder: Path, state: Mapping[str, Tensor], progress: Progress) -> None:
    """Write the optimisers' tensors and the progress beside the model of a checkpoint."""
    safetensors.torch.save_file(dict(state), str(folder / "training.safetensors"))
    save_progress(folder, progress)


def save_progress(folder: Path, progress: Progress) -> None:
    """Write the progress alone, beside what does not change."""
    (folder / PROGRESS_FILE).write_text(json.dumps(asdict(progress)) + "\n", encoding="utf-8")


def load_progress(folder: Path) -> Progress:
    """Return how far a checkpoint's run had come."""
    try:
        saved = json.loads((folder / PROGRESS_FILE).read_text(encoding="utf-8"))
        progress = Progress(**saved)
        progress.kept = [(score, step) for score, step in saved["kept"]]
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / PROGRESS_FILE} cannot be read: {error}") from None
    except (TypeError, KeyError) as error:
        raise UserError(f"{folder} was written by another version of seq2seq: {error}") from None
    return progress


def load_state(folder: Path, model: Network, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Put weights and optimisers back as a checkpoint has them."""
    load_weights(model, folder)
    _fill_optimizers(optimizers, safetensors.torch.load_file(str(folder / "training.safetensors")))


def optimizer_state(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Return a copy of the optimisers' tensors in main memory, by number, parameter and name."""
    return {
        f"{number}.{index}.{name}": tensor.detach().to("cpu", copy=True).contiguous()
        for number, optimizer in enumerate(optimizers)
        for index, tensors in optimizer.state_dict()["state"].items()
        for name, tensor in tensors.items()
    }


def _fill_optimizers(
    optimizers: Sequence[torch.optim.Optimizer], tensors: Mapping[str, Tensor]
) -> None:
    states: list[dict[int, dict[str, Tensor]]] = [{} for _ in optimizers]
    for key, tensor in tensors.items():
        number, index, name = key.split(".", 2)
        states[int(number)].setdefault(int(index), {})[name] = tensor
    for optimizer, state in zip(optimizers, states, strict=True):
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
