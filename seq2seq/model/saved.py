"""Find the model directory of a run and read its recipe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from seq2seq.config import Config, config_of
from seq2seq.data.json_objects import read_object_file
from seq2seq.data.tokenizer import MODEL_FILES, TOKENIZER_FILES, Tokenizer
from seq2seq.errors import UserError, short
from seq2seq.files import SUMS_FILE, find_damage
from seq2seq.model.marian import is_marian, read_marian

MODEL_FORMAT = 1
MODEL_FILE = "model.json"
WEIGHTS_FILE = "model.safetensors"
STARTS_FILE = "starts.jsonl"
LOCK_FILE = ".lock"
OPTIONAL_FILES = ("README.md", "LICENSE", "LICENSE.md", "LICENSE.txt", "recipe.yaml")
"""Files of a model directory that may be changed or deleted."""
CONVERTED_FOLDER = "ctranslate2"
"""Folder in a model directory with its cached conversion to CTranslate2."""
DEFAULT_LIMIT = 1_024
"""Maximum number of source tokens of a model trained without data.clean.max_len."""
RUN_FILES = ("recipe.yaml", "metrics.jsonl", STARTS_FILE, *TOKENIZER_FILES)
RUN_NAMES = (*RUN_FILES, "best", "last", "averaged", "checkpoints", "kept")
"""Files, links and folders of a run."""


def find_model(run: Path, checkpoint: str | None = None) -> Path:
    """Return `run` itself if it is a model directory, else the named checkpoint, best, or last."""
    tried = [run, run / "best", run / "last"]
    if checkpoint is not None:
        # Relative to the run: an absolute path would load one model for every run of an ensemble.
        tried = [folder / checkpoint.lstrip("/") for folder in (run, run / "checkpoints")]
    for folder in tried:
        if _is_model(folder):
            return folder
    if not run.is_dir():
        raise UserError(f"no such run or model directory: {run}; `seq2seq runs` lists the runs")
    missing = f"checkpoint {checkpoint!r}" if checkpoint else "a trained model"
    folders = {str(path.parent.relative_to(run)) for path in run.glob(f"**/{MODEL_FILE}")}
    names = ", ".join(sorted(folders)) or "none"
    raise UserError(f"{run} does not hold {missing}; models there: {names}")


def is_exported(folder: Path) -> bool:
    """Return whether a model directory was exported to CTranslate2."""
    return (folder / "model.bin").exists()


def require_outside_of_runs(output: Path) -> None:
    """Raise UserError for an output that would overwrite a file of a run or model directory."""
    target = output.resolve()
    inner = [target, *target.parents]
    if _is_model(target.parent) or any(p.name in RUN_NAMES and _is_run(p.parent) for p in inner):
        raise UserError(f"{output} belongs to a run or a model; name another -o")


def require_new_folder(output: Path) -> None:
    """Raise UserError for an output folder that exists or lies in a run or model directory."""
    require_outside_of_runs(output)
    if output.exists() or output.is_symlink():
        raise UserError(f"{output} exists; name a new folder with -o")


def _is_model(folder: Path) -> bool:
    return (folder / MODEL_FILE).is_file() or is_marian(folder)


def not_a_run(folder: Path) -> str | None:
    """Return an error message if a run would overwrite files of another kind of folder."""
    existing = [name for name in (*RUN_NAMES, MODEL_FILE) if (folder / name).exists()]
    if not existing or _is_run(folder):
        return None
    return (
        f"{folder} holds {existing[0]}, but is not a run directory (it has no {STARTS_FILE}): "
        "name another directory with --run"
    )


def _is_run(folder: Path) -> bool:
    return (folder / STARTS_FILE).exists()


def vocabulary_files(folder: Path) -> tuple[str, ...]:
    """Return the vocabulary files of a model directory, source before target."""
    return tuple(str(folder / name) for name in MODEL_FILES if (folder / name).exists())


def describe_model(folder: Path) -> tuple[Config, Tokenizer]:
    """Return the recipe and the tokenizer of a model directory.

    Paths of pre-trained vocabularies are replaced by their copies in the directory. The recipe of a
    Marian model is derived from its settings. Raises UserError if the model was trained with
    another tokenizer.
    """
    try:
        if is_marian(folder):
            recipe, tokenizer = read_marian(folder)
        else:
            description = read_object_file(folder / MODEL_FILE)
            if (version := description["format"]) != MODEL_FORMAT:
                raise UserError(
                    f"model format {short(version)}, but this seq2seq version reads {MODEL_FORMAT}"
                )
            recipe, tokenizer = description["recipe"], Tokenizer.load(folder)
            if tokenizer.checksum != description["tokenizer"]["sha256"]:
                raise UserError("its tokenizer is not the one the model was trained with")
        config = config_of(recipe, "recipe")
    except UserError as error:
        raise UserError(f"{folder} cannot be read: {error}") from None
    except (KeyError, TypeError) as error:
        raise UserError(f"{folder} cannot be read: it has no {error}") from None
    if config.tokenizer.models:  # the files named in the recipe may have been deleted
        section = replace(config.tokenizer, models=vocabulary_files(folder))
        config = replace(config, tokenizer=section)
    return config, tokenizer


def require_undamaged(folder: Path) -> None:
    """Raise UserError if a file of a model directory has changed since it was written."""
    if (folder / SUMS_FILE).exists() and (problem := find_damage(folder, OPTIONAL_FILES)):
        raise UserError(f"{folder} is damaged: {problem}; use another checkpoint")


def max_source_tokens(config: Config) -> int:
    """Return the maximum number of source tokens, without the end symbol."""
    return config.pairs.clean.max_len or DEFAULT_LIMIT


def num_positions(config: Config) -> int:
    """Return the maximum number of source or target tokens, with start or end symbol."""
    if config.model.positions == "learned":
        return config.model.context
    return max(2048, 2 * max_source_tokens(config))
