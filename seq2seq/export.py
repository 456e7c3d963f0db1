"""Export of a model to the format of another program, with a model card (Mitchell et al. 2019)."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from seq2seq.config import Config, DecodingConfig, to_yaml, with_paths
from seq2seq.decoding.ctranslate2_engine import UNSUPPORTED
from seq2seq.errors import UserError
from seq2seq.evaluation.metrics import bleu_tokenizer
from seq2seq.files import atomic_folder, exclusive
from seq2seq.formats.ctranslate2 import ArgosFormat, CTranslate2Format
from seq2seq.formats.huggingface import HuggingFaceFormat
from seq2seq.formats.model_directory import find_model
from seq2seq.formats.weights import load_model
from seq2seq.model.transformer import Transformer
from seq2seq.training.records import last_start, metric_name, read_metrics, require_new_folder

logger = logging.getLogger(__name__)

UNKNOWN = "Not recorded: this model was exported without its run."


def model_card(folder: Path, config: Config, parameters: int, usage: str) -> str:
    """Return a model card in Markdown, with metadata for the Hugging Face Hub.

    folder: model directory in its run. parameters: number of parameters. usage: Markdown text on
    how to use the exported model.
    """
    folder = folder.resolve()
    run = folder.parent.parent
    start = last_start(run)
    languages = [code for code in (config.pairs.source, config.pairs.target) if code]
    # Quoted, since YAML reads the code of Norwegian, no, as a boolean.
    codes = "".join(["language:\n", *(f"- {json.dumps(code)}\n" for code in languages)])
    tags = sorted({f"`{corpus.tag}`" for corpus in config.data.corpora if corpus.tag})
    tagged = f"\n\nStart each sentence with a tag and a space: {' or '.join(tags)}." if tags else ""
    direction = " from {} to {}".format(*languages) if len(languages) == 2 else ""
    shape, initial = config.model, config.training.init_from
    origin = f", trained from the weights of {initial}" if initial else ""
    return f"""\
---
{codes if languages else ""}pipeline_tag: translation
license: unknown # fill in the licence of the weights
---

# Translation{direction}

A Transformer with {parameters:,} parameters (encoder layers: {shape.encoder_layers}, decoder \
layers: {shape.decoder_layers}, dimension: {shape.dim}){origin}. It translates single sentences \
like those in its training data. Translations may omit or invent content.

## Use

{usage.strip()}{tagged}

## Scores on the development set

{_scores(run, folder.name, config)}

## Training data

{_data(start) if start else UNKNOWN}

## Training

{_training(start) if start else UNKNOWN}

```yaml
{to_yaml(config).strip()}
```
"""


def _scores(run: Path, name: str, config: Config) -> str:
    """Return the scores of the last validation of a model; name: its directory, as `step_10`."""
    kind, _, number = name.partition("_")
    place = ("average" if kind == "average" else "validation", number)
    found = [x for x in read_metrics(run) if (x["kind"], str(x["step"])) == place]
    if not found:
        return "Not recorded."
    keys = [key for key in ("nll", "bleu", "chrf") if key in found[-1]]
    values = ", ".join(f"{metric_name(key)} {found[-1][key]:.2f}" for key in keys)
    sentences = config.training.validation_sentences
    part = f", first {sentences:,} sentences" if sentences else ""
    return (
        f"After update {number} (beam {config.decoding.validation_beam}{part}): {values} "
        f"(sacreBLEU, tokenizer {bleu_tokenizer(config.pairs)})."
    )


def _data(start: dict[str, Any]) -> str:
    data = start["data"]
    rows = ["| file or dataset | bytes | sha256 |\n|---|---|---|"]
    for source in data["inputs"]:
        size = f"{source['bytes']:,}" if "bytes" in source else ""
        name = Path(source["file"]).name if "file" in source else source["dataset"]
        rows.append(f"| {name} | {size} | `{source['sha256']}` |")
    sizes = ", ".join(f"{name} {facts['pairs']:,}" for name, facts in data["splits"].items())
    return "\n".join([*rows, "", f"Pairs after cleaning: {sizes}."])


def _training(start: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in start["packages"].items())
    facts = ", ".join(f"{key}: {start[key]}" for key in ("processes", "precision", "seed"))
    return (
        f"seq2seq at commit {start['commit'] or 'unknown'} ({versions}). Device: "
        f"{start['device']}, {facts}. Last start: {start['time']}."
    )


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
    if not isinstance(loaded.model, Transformer):
        raise UserError(f"exports are for translation models, not for task={loaded.config.task}")
    config = portable(loaded.config)
    exporter = FORMATS[to](loaded.model, loaded.tokenizer, config, quantization)
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
