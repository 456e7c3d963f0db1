"""Checkpoints: model directories with everything needed to resume training."""

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
    """The state of a run, apart from model and optimisers; `(epoch, offset)` is its data position.

    It has no random state: random numbers of an update depend on seed, update and process.
    """

    step: int = 0
    """Updates, including skipped ones."""
    epoch: int = 0
    offset: int = 0
    """Sentences of this epoch that are done."""
    minutes: float = 0.0
    """Training time over all starts of the run."""
    skipped: int = 0
    """Updates with a non-finite gradient."""
    skipped_in_row: int = 0
    best_score: float | None = None
    """Validation score of the model in best/: BLEU, accuracy or negated nll; higher is better."""
    kept: list[tuple[float, int]] = field(default_factory=list)
    """Validation score and update of the models in kept/, the best first."""
    validations_since_best: int = 0
    validated: int = -1
    """Update of the last validation."""
    averaged: int = -1
    """Update of the last average of checkpoints."""
    regular: bool = True
    """False for a checkpoint written because of a signal: it is neither kept nor averaged."""
    interval: list[float] = field(default_factory=list)
    """Sums since the last log step."""
    data: str = ""
    """SHA-256 of the training data."""

    def is_best(self, score: float) -> bool:
        """Return whether this validation score is the best so far; NaN never is."""
        return not math.isnan(score) and (self.best_score is None or not self.best_score >= score)


def checkpoints(run: Path) -> list[Path]:
    """Return a run's checkpoints, oldest first; some may be damaged."""
    found = [path for path in run.glob("checkpoints/step_*") if step_of(path) is not None]
    return sorted(found, key=lambda path: step_of(path) or 0)


def step_of(folder: Path) -> int | None:
    """Return the update in a checkpoint's name; None for other paths."""
    number = folder.name.removeprefix("step_")
    return int(number) if number.isdecimal() and folder.is_dir() else None


def regular_checkpoints(run: Path) -> list[Path]:
    """Return the checkpoints that were not written because of a signal."""
    return [folder for folder in checkpoints(run) if is_regular(folder)]


def is_regular(folder: Path) -> bool | None:
    """Return False if a signal caused a checkpoint; None if its training.json is damaged."""
    try:
        return load_progress(folder).regular
    except UserError:
        return None


def last_good_checkpoint(run: Path) -> Path | None:
    """Return the newest undamaged checkpoint; log a warning for each newer one."""
    found = checkpoints(run)
    for folder in reversed(found):
        problem = damage(folder)
        if problem is None:
            return folder
        logger.warning("%s is damaged: %s; trying the one before it", folder, problem)
    if found:
        raise UserError(
            f"every checkpoint of {run} is damaged; restore one from a copy, or delete "
            f"{run / 'checkpoints'} to start again"
        )
    return None


def save_state(folder: Path, state: Mapping[str, Tensor], progress: Progress) -> None:
    """Write optimiser state and progress to the folder of a checkpoint."""
    safetensors.torch.save_file(dict(state), str(folder / "training.safetensors"))
    save_progress(folder, progress)


def save_progress(folder: Path, progress: Progress) -> None:
    """Write the progress to the folder of a checkpoint."""
    (folder / PROGRESS_FILE).write_text(json.dumps(asdict(progress)) + "\n", encoding="utf-8")


def load_progress(folder: Path) -> Progress:
    """Return the progress in a checkpoint."""
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
    """Load weights and optimiser state of a checkpoint."""
    load_weights(model, folder)
    _fill_optimizers(optimizers, safetensors.torch.load_file(str(folder / "training.safetensors")))


def optimizer_state(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Return a copy of the optimisers' state in main memory, keyed by optimizer.parameter.name."""
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
