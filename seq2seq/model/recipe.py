"""Read recipes, with size and tokenizer of the initial model if they name one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seq2seq.config import Config, default_run, read_recipe, resolve, to_tree
from seq2seq.errors import UserError
from seq2seq.model.marian import DROPOUTS
from seq2seq.model.saved import describe_model, find_model, require_own_weights, vocabulary_files

OWN_CHOICE = {f"model.{key}" for key in DROPOUTS} | {"tokenizer.bpe_dropout"}
"""Keys of model and tokenizer that a run with training.init_from may set."""


def load_config(path: str | Path, overrides: Sequence[str] = (), run: Path | None = None) -> Config:
    """Read a recipe and apply `section.key=value` overrides; raises UserError for any error.

    run: the run directory. An existing run there replaces training.init_from, so that the initial
    model may be gone.
    """
    tree = read_recipe(path, overrides)
    if source := (tree.get("training") or {}).get("init_from"):
        last = (run or default_run(tree["name"])) / "last"
        _inherit(tree, last if (last / "model.json").exists() else Path(source))
    return resolve(tree, str(path))


def _inherit(tree: dict[str, Any], source: Path) -> None:
    """Take model size and tokenizer from a trained model, for training.init_from."""
    require_own_weights(folder := find_model(source))
    saved = to_tree(describe_model(folder)[0])
    if (task := tree.get("task", "translation")) != saved["task"]:
        raise UserError(f"task={task} differs from that of {source}, which is {saved['task']}")
    saved["tokenizer"] |= {"models": list(vocabulary_files(folder))}
    for name in ("model", "tokenizer"):
        section = dict(tree.get(name) or {})
        for key, value in section.items():
            full_key = f"{name}.{key}"
            if full_key not in OWN_CHOICE and value != saved[name].get(key):
                raise UserError(
                    f"{full_key}={value} differs from that of the initial model {source}, "
                    f"{saved[name].get(key)}: remove the key: its value is taken from there"
                )
        tree[name] = saved[name] | section
