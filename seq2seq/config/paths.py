"""The paths in a recipe."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from seq2seq.config.schema import Config, CorpusConfig


def with_paths(config: Config, place: Callable[[str], str] = os.path.abspath) -> Config:
    """Return a recipe with `place(path)` for each path, by default the absolute path.

    Paths are those of the corpora, data.store, tokenizer.models and training.init_from. A dataset
    has a path if it is a local folder.
    """

    def placed(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(placed, value))
        if not isinstance(value, CorpusConfig):
            return value
        dataset = Path(value.dataset or "")  # by its hub name, or a folder
        is_folder = value.dataset and (dataset.is_absolute() or dataset.is_dir())
        keys = ["path", "source", "target", *(["dataset"] if is_folder else [])]
        given = {key: path for key in keys if (path := getattr(value, key))}
        paths: dict[str, Any] = {key: place(path) for key, path in given.items()}
        return replace(value, **paths)

    data = {key: placed(value) for key, value in vars(config.data).items()}
    data["store"] = place(config.data.store)
    models, initial = config.tokenizer.models, config.training.init_from
    return replace(
        config,
        data=replace(config.data, **data),
        tokenizer=replace(config.tokenizer, models=tuple(map(place, models))),
        training=replace(config.training, init_from=place(initial) if initial else initial),
    )
