"""Check that a run can resume with the current recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seq2seq.config import Config, to_tree
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import SharedError
from seq2seq.model.recipe import comes_with_weights
from seq2seq.model.saved import describe_model

FREE_KEYS = {
    "training.max_steps", "training.max_minutes", "training.batch_tokens",
    "training.micro_batch_tokens", "training.validate_every", "training.validate_every_epochs",
    "training.validation_sentences", "training.patience", "training.checkpoint_every",
    "training.checkpoint_every_minutes", "training.checkpoint_every_epochs", "training.keep_last",
    "training.keep_best", "training.average_last", "training.log_every", "training.tensorboard",
    "training.max_skipped", "training.gradient_checkpointing", "training.compile", "name",
}  # fmt: skip
"""Keys that may change when a run resumes, besides those of `decoding`. Only the two batch sizes
change the updates, apart from dropout masks and rounding."""
LENGTH_KEYS = {"training.max_steps", "training.max_minutes"}
"""Keys that determine the end of a cosine schedule."""


def require_same_run(
    folder: Path, tokenizer: Tokenizer, config: Config, *, saved_data: str, data: str
) -> None:
    """Raise UserError, naming every key that differs, unless a checkpoint fits recipe and data.

    saved_data, data: checksums of the training data then and now. If they are equal, the keys of
    the corpora are ignored; and those of the tokenizer, if that is the same.
    """
    saved, old_tokenizer = describe_model(folder)
    free = set(FREE_KEYS)
    if config.training.schedule == "cosine":
        free -= LENGTH_KEYS
    same_data, same_tokenizer = saved_data == data, old_tokenizer == tokenizer.checksum
    changed = {
        key: text
        for key, text in changes(saved, config).items()
        if not (
            key in free
            or key.startswith("decoding.")
            or (key.startswith("data.") and same_data and not key.endswith(".weight"))
            or (key.startswith("tokenizer.") and same_tokenizer and key != "tokenizer.bpe_dropout")
        )
    }
    if not changed and not same_tokenizer:
        changed["tokenizer.models"] = "the tokenizer has changed"
    if not changed and not same_data:
        changed["data"] = "the text of the corpora has changed"
    if changed:
        if LENGTH_KEYS & changed.keys() and config.training.schedule == "cosine":
            changed["cosine"] = "a cosine keeps the length that it started with"
        weights = " (training.init_from starts a new run from these weights)"
        raise SharedError(
            f"{folder} was trained with another recipe: {'; '.join(changed.values())}. Restore "
            "the old one, or name another run directory with --run"
            f"{'' if any(map(comes_with_weights, changed)) else weights}"
        )


def require_effect(folder: Path, config: Config) -> None:
    """Raise UserError for a changed key, in the recipe of a finished run, that has no effect."""
    changed = changes(describe_model(folder)[0], config)
    if ignored := [text for key, text in changed.items() if key in FREE_KEYS - {"name"}]:
        raise SharedError(
            f"{folder.parents[1]} is finished, so this has no effect: {'; '.join(ignored)}. Leave "
            "it out, raise training.max_steps, max_minutes or patience to continue, or name "
            "another run directory with --run"
        )


def changes(saved: Config, config: Config) -> dict[str, str]:
    """Return the keys that differ between two recipes, with a description of both values."""
    old, new = _flat(to_tree(saved)), _flat(to_tree(config))
    return {
        key: f"{key} was {old.get(key)}, is {new.get(key)}"
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    }


def _flat(tree: Any, key: str = "") -> dict[str, Any]:
    """Return the leaves of nested dictionaries and lists, by dotted key."""
    if isinstance(tree, dict):
        items = [(str(name), value) for name, value in tree.items()]
    elif isinstance(tree, list) and any(isinstance(value, dict) for value in tree):
        items = [(str(i), value) for i, value in enumerate(tree)]
    else:
        return {key: tree}
    flat: dict[str, Any] = {}
    for name, value in items:
        flat |= _flat(value, f"{key}.{name}" if key else name)
    return flat
