"""Model directories without their weights, and recipes that start from one; without torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from seq2seq.config import Config, config_of, read_recipe, resolve, to_tree
from seq2seq.data.lines import read_object_file
from seq2seq.data.tokenizer import MODEL_FILES, Tokenizer
from seq2seq.errors import UserError, short
from seq2seq.files import SUMS_FILE, find_damage
from seq2seq.formats.pretrained import DROPOUTS, is_pretrained, read_pretrained

MODEL_FORMAT = 1
MODEL_FILE = "model.json"
WEIGHTS_FILE = "model.safetensors"
OPTIONAL_FILES = ("README.md", "LICENSE", "LICENSE.md", "LICENSE.txt", "recipe.yaml")
"""Files of a model directory that may be changed or deleted."""
CONVERTED_FOLDER = "ctranslate2"
"""Folder in a model directory with its cached conversion to CTranslate2."""
OVERRIDABLE_KEYS = {f"model.{key}" for key in DROPOUTS}
OVERRIDABLE_KEYS |= {"tokenizer.bpe_dropout", "tokenizer.new_pieces"}
"""Keys of model and tokenizer that may differ from the initial model's."""


def find_model(run: Path, checkpoint: str | None = None) -> Path:
    """Return `run` itself if it is a model directory, else the named checkpoint, best, or last."""
    tried = [run, run / "best", run / "last"]
    if checkpoint is not None:
        # Relative to the run: an absolute path would load one model for every run of an ensemble.
        tried = [folder / checkpoint.lstrip("/") for folder in (run, run / "checkpoints")]
    for folder in tried:
        if is_model(folder):
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


def is_model(folder: Path) -> bool:
    """Return whether a folder is a model directory or a model of transformers."""
    return (folder / MODEL_FILE).is_file() or is_pretrained(folder)


def vocabulary_files(folder: Path) -> tuple[str, ...]:
    """Return the vocabulary files of a model directory, source before target."""
    return tuple(str(folder / name) for name in MODEL_FILES if (folder / name).exists())


def describe_model(folder: Path) -> tuple[Config, Tokenizer]:
    """Return the recipe and the tokenizer of a model directory.

    Paths of pre-trained vocabularies are replaced by their copies in the directory. For a model of
    transformers, the recipe is derived from its settings. Raises UserError if the model was trained
    with another tokenizer.
    """
    try:
        if is_pretrained(folder):
            recipe, tokenizer = read_pretrained(folder)
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


def save_description(
    folder: Path, num_parameters: int, tokenizer: Tokenizer, config: Config
) -> None:
    """Write model.json and the tokenizer's files to a folder."""
    description: dict[str, Any] = {
        "format": MODEL_FORMAT,
        "parameters": num_parameters,
        "tokenizer": {"sha256": tokenizer.checksum},
        "recipe": to_tree(config),
    }
    text = json.dumps(description, indent=2, ensure_ascii=False)
    (folder / MODEL_FILE).write_text(f"{text}\n", encoding="utf-8")
    tokenizer.save(folder)


def load_config(path: str | Path, overrides: Sequence[str] = (), run: Path | None = None) -> Config:
    """Read a recipe and apply `section.key=value` overrides; raises UserError for any error.

    run: the run directory. If it holds a run, its last checkpoint replaces training.init_from: the
    initial model may have been deleted.
    """
    tree = read_recipe(path, overrides)
    if source := (tree.get("training") or {}).get("init_from"):
        last = (run or Path("runs", tree["name"])) / "last"
        _inherit(tree, last if (last / "model.json").exists() else Path(source), Path(source))
    return resolve(tree, str(path))


def _inherit(tree: dict[str, Any], source: Path, initial: Path) -> None:
    """Copy model size and tokenizer from a model into a recipe.

    initial: the initial model of the run, whose tokenizer the run may have extended. Prepared data
    depend on it, so that it is used as long as it exists.
    """
    folder = find_model(source)
    saved = to_tree(describe_model(folder)[0])
    if (task := tree.get("task", "translation")) != saved["task"]:
        raise UserError(f"the recipe has task={task}, but {source} has task={saved['task']}")
    files = vocabulary_files(find_model(initial) if initial.is_dir() else folder)
    saved["tokenizer"] |= {"models": list(files)}
    for name in ("model", "tokenizer"):
        section = dict(tree.get(name) or {})
        for key, value in section.items():
            full_key = f"{name}.{key}"
            if full_key not in OVERRIDABLE_KEYS and value != saved[name].get(key):
                raise UserError(
                    f"the recipe has {full_key}={value}, but the initial model {source} has "
                    f"{saved[name].get(key)}; remove the key to use the model's value"
                )
        tree[name] = saved[name] | section
