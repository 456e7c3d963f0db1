"""Paths in a recipe."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from seq2seq.config.schema import Config, CorpusConfig


def with_paths(config: Config, convert: Callable[[str], str] = os.path.abspath) -> Config:
    """Return a recipe with `convert(path)` for each path, by default the absolute path.

    Converts the paths of corpora, data.store, tokenizer.models and training.init_from. A dataset
    counts as a path if it is a local folder.
    """

    def converted(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(converted, value))
        if not isinstance(value, CorpusConfig):
            return value
        dataset = Path(value.dataset or "")  # a hub name or a folder
        is_folder = value.dataset and (dataset.is_absolute() or dataset.is_dir())
        keys = ["path", "source", "target", *(["dataset"] if is_folder else [])]
        paths = {key: path for key in keys if (path := getattr(value, key))}
        changes: dict[str, Any] = {key: convert(path) for key, path in paths.items()}
        return replace(value, **changes)

    data = {key: converted(value) for key, value in vars(config.data).items()}
    data["store"] = convert(config.data.store)
    models, initial = config.tokenizer.models, config.training.init_from
    return replace(
        config,
        data=replace(config.data, **data),
        tokenizer=replace(config.tokenizer, models=tuple(map(convert, models))),
        training=replace(config.training, init_from=convert(initial) if initial else initial),
    )
