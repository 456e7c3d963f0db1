"""Write a trained model in the format of another program, with its card, recipe and tokenizer."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import torch

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
"""Formats by name. Creating one raises UserError if it cannot hold the model."""


def export(
    run: Path,
    output: Path,
    *,
    to: str,
    checkpoint: str | None = None,
    quantization: str | None = None,
) -> None:
    """Export a run's best model, or a model directory, to a new folder.

    to: a key of `FORMATS`. quantization: the data type of the weights, if the format has a choice.
    Raises UserError, and leaves nothing behind, for a model that the format cannot hold.
    """
    require_new_folder(output)
    folder = find_model(run, checkpoint)
    loaded = load_model(folder, "cpu")
    for name, parameter in loaded.model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise UserError(
                f"{folder}: {name} is not finite: its training has diverged, or the file is "
                "damaged; use another checkpoint"
            )
    config = portable(loaded.config)
    target = FORMATS[to](replace(loaded, config=config), quantization)
    for key, value in vars(config.decoding).items():
        if (old := getattr(loaded.config.decoding, key)) != value:
            logger.warning("decoding.%s=%s becomes %s: the format has no other", key, old, value)
    card = model_card(folder, config, loaded.model.num_parameters(), target.usage(output))
    with exclusive(output), atomic_folder(output) as draft:
        target.write(draft, card)
        (draft / "README.md").write_text(card, encoding="utf-8")
        (draft / "recipe.yaml").write_text(to_yaml(config), encoding="utf-8")
    logger.info("fill in the licence in %s", output / "README.md")


def portable(config: Config) -> Config:
    """Return a recipe without paths of this machine, and without a search that others lack."""
    config = with_paths(config, lambda path: Path(path).name)
    if not config.translates:
        return config
    new = {key: getattr(DecodingConfig(), key) for key in UNSUPPORTED}
    return replace(config, decoding=replace(config.decoding, **new, penalty_form="power"))
