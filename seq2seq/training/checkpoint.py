"""Checkpoints: a model directory plus everything that training needs to go on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from seq2seq.config import Config, to_tree
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError
from seq2seq.model.directory import (
    describe_model,
    find_model,
    load_model,
    load_weights,
    new_model_folder,
    save_model,
    written_whole,
)
from seq2seq.model.transformer import Transformer


@dataclass
class Progress:
    """How far a run has come; `(epoch, offset)` is its place in the data."""

    step: int = 0
    """Updates done."""
    epoch: int = 0
    offset: int = 0
    """Sentences of this epoch's order that are done."""
    minutes: float = 0.0
    """Spent so far, over all the run's starts."""
    best_bleu: float | None = None
    validations_since_best: int = 0


def checkpoints(run: Path) -> list[Path]:
    """Return a run's whole checkpoints, the oldest first."""
    found = [path.parent for path in run.glob("checkpoints/step_*/training.json")]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step_")))


def save_checkpoint(
    run: Path,
    model: Transformer,
    tokenizer: Tokenizer,
    config: Config,
    optimizers: Sequence[torch.optim.Optimizer],
    progress: Progress,
) -> None:
    """Write checkpoints/step_N and last/, and drop the checkpoints that are too old."""
    with written_whole(run / "checkpoints" / f"step_{progress.step}") as folder:
        save_model(folder, model, tokenizer, config)
        safetensors.torch.save_file(
            _optimizer_tensors(optimizers) | _random_state(), str(folder / "training.safetensors")
        )
        save_progress(folder, progress)
    with written_whole(run / "last") as folder:
        save_model(folder, model, tokenizer, config)
    for old in checkpoints(run)[: -config.training.keep_last]:
        shutil.rmtree(old)


def save_progress(folder: Path, progress: Progress) -> None:
    """Write, or write again, how far a checkpoint's run has come."""
    draft = folder / ".training.json"
    draft.write_text(json.dumps(asdict(progress)), encoding="utf-8")
    draft.replace(folder / "training.json")


def check_resumable(folder: Path, tokenizer: Tokenizer, config: Config) -> None:
    """Raise UserError unless a checkpoint's model and optimiser are those of this recipe."""
    saved, old_tokenizer = describe_model(folder)
    new_run = "; name another run directory with --run, or go back to the old recipe"
    old, new = to_tree(saved), to_tree(config)
    keys = [("model", key) for key in new["model"]] + [("training", "optimizer")]
    for section, key in keys:
        if old[section][key] != new[section][key]:
            raise UserError(
                f"{folder} was trained with {section}.{key}={old[section][key]}, the recipe says "
                f"{new[section][key]}{new_run}"
            )
    if old_tokenizer != tokenizer.checksum:
        raise UserError(
            f"{folder} was trained with another tokenizer: the recipe's corpora or its tokenizer "
            f"section have changed{new_run}"
        )


def load_checkpoint(
    folder: Path, model: Transformer, optimizers: Sequence[torch.optim.Optimizer]
) -> Progress:
    """Put model, optimiser and random state back as they were saved; return the progress."""
    load_weights(model, folder)
    try:
        tensors = safetensors.torch.load_file(str(folder / "training.safetensors"))
        progress = Progress(**json.loads((folder / "training.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, safetensors.SafetensorError) as error:
        raise UserError(
            f"{folder} is damaged: {error}; delete it to go on from the checkpoint before it"
        ) from None
    torch.set_rng_state(tensors.pop("random.cpu"))
    cuda_state = tensors.pop("random.cuda", None)
    if cuda_state is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(cuda_state)
    _fill_optimizers(optimizers, tensors)
    return progress


def _random_state() -> dict[str, Tensor]:
    state = {"random.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["random.cuda"] = torch.cuda.get_rng_state()
    return state


def _optimizer_tensors(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    return {
        f"optimizer.{number}.{index}.{name}": tensor.contiguous()
        for number, optimizer in enumerate(optimizers)
        for index, tensors in optimizer.state_dict()["state"].items()
        for name, tensor in tensors.items()
    }


def _fill_optimizers(
    optimizers: Sequence[torch.optim.Optimizer], tensors: dict[str, Tensor]
) -> None:
    states: list[dict[int, dict[str, Tensor]]] = [{} for _ in optimizers]
    for key, tensor in tensors.items():
        kind, number, index, name = key.split(".", 3)
        if kind == "optimizer":
            states[int(number)].setdefault(int(index), {})[name] = tensor
    for optimizer, state in zip(optimizers, states, strict=True):
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})


def average_models(folders: Sequence[Path], into: Path) -> None:
    """Write a model directory whose weights are the mean of the others', summed in float64."""
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
        save_model(draft, first.model, first.tokenizer, first.config)


def last_checkpoints(run: Path, count: int) -> list[Path]:
    """Return the last `count` checkpoints; raises UserError if there are fewer."""
    found = checkpoints(run)
    if not found:
        find_model(run)  # says what is wrong with RUN
    if len(found) < count:
        raise UserError(
            f"{run} holds {len(found)} checkpoints, fewer than the {count} to average; take fewer "
            "with --last, or train with a larger training.keep_last"
        )
    return found[-count:]
