"""Read recipes. With training.init_from, model size and tokenizer come from the initial model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seq2seq.config import Config, default_run, read_recipe, resolve, to_tree
from seq2seq.errors import UserError
from seq2seq.model.marian import DROPOUTS
from seq2seq.model.saved import describe_model, find_model, vocabulary_files

OVERRIDABLE_KEYS = {f"model.{key}" for key in DROPOUTS} | {"tokenizer.bpe_dropout"}
"""Keys of model and tokenizer that may differ from the initial model's."""


def load_config(path: str | Path, overrides: Sequence[str] = (), run: Path | None = None) -> Config:
    """Read a recipe and apply `section.key=value` overrides; raises UserError for any error.

    run: the run directory. If it holds a run, its last checkpoint replaces training.init_from: the
    initial model may have been deleted.
    """
    tree = read_recipe(path, overrides)
    if source := (tree.get("training") or {}).get("init_from"):
        last = (run or default_run(tree["name"])) / "last"
        _inherit(tree, last if (last / "model.json").exists() else Path(source))
    return resolve(tree, str(path))


def _inherit(tree: dict[str, Any], source: Path) -> None:
    """Copy model size and tokenizer from the initial model into a recipe."""
    folder = find_model(source)
    saved = to_tree(describe_model(folder)[0])
    if (task := tree.get("task", "translation")) != saved["task"]:
        raise UserError(f"the recipe has task={task}, but {source} has task={saved['task']}")
    saved["tokenizer"] |= {"models": list(vocabulary_files(folder))}
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
