"""Export of a model to the format of another program, with model card, recipe and tokenizer."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from seq2seq.config import Config, DecodingConfig, to_yaml, with_paths
from seq2seq.decoding.ctranslate2_engine import UNSUPPORTED
from seq2seq.errors import UserError
from seq2seq.export.card import model_card
from seq2seq.export.ctranslate2 import ArgosFormat, CTranslate2Format
from seq2seq.export.huggingface import HuggingFaceFormat
from seq2seq.files import atomic_folder, exclusive
from seq2seq.model.directory import load_model
from seq2seq.model.saved import find_model, require_new_folder

logger = logging.getLogger(__name__)

FORMATS: dict[str, type[CTranslate2Format | HuggingFaceFormat]] = {
    "ctranslate2": CTranslate2Format,
    "huggingface": HuggingFaceFormat,
    "argos": ArgosFormat,
}
"""Formats by name. The constructor raises UserError if the format does not support the model."""


def export(
    run: Path,
    output: Path,
    *,
    to: str,
    checkpoint: str | None = None,
    quantization: str | None = None,
) -> None:
    """Export the best model of a run, or a model directory, to a new folder.

    to: key of `FORMATS`. quantization: data type of the weights, for CTranslate2 and Argos.
    Raises UserError, without writing anything, if the format does not support the model.
    """
    require_new_folder(output)
    folder = find_model(run, checkpoint)
    loaded = load_model(folder, "cpu")
    if not loaded.config.translates:
        raise UserError(f"exports are for translation models, not for task={loaded.config.task}")
    config = portable(loaded.config)
    exporter = FORMATS[to](replace(loaded, config=config), quantization)
    for key, value in vars(config.decoding).items():
        if (old := getattr(loaded.config.decoding, key)) != value:
            logger.warning("decoding.%s=%s becomes %s: not supported by %s", key, old, value, to)
    card = model_card(folder, config, loaded.model.num_parameters(), exporter.usage(output))
    with exclusive(output), atomic_folder(output) as draft:
        exporter.write(draft, card)
        (draft / "README.md").write_text(card, encoding="utf-8")
        (draft / "recipe.yaml").write_text(to_yaml(config), encoding="utf-8")
    logger.info("add a licence to %s", output / "README.md")


def portable(config: Config) -> Config:
    """Return a recipe without local folders and without search settings that CTranslate2 lacks."""
    config = with_paths(config, lambda path: Path(path).name)
    new = {key: getattr(DecodingConfig(), key) for key in UNSUPPORTED}
    return replace(config, decoding=replace(config.decoding, **new, penalty_form="power"))
