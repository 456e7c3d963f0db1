"""Export of a model to the format of another program, with a model card (Mitchell et al. 2019)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from seq2seq.config import Config, DecodingConfig, Direction, PairsConfig, to_yaml, with_paths
from seq2seq.data.extension import reduced
from seq2seq.data.lines import lines_of, require_files
from seq2seq.data.tokenizer import MODEL_FILES, Tokenizer
from seq2seq.decoding.ctranslate2_engine import UNSUPPORTED
from seq2seq.errors import UserError
from seq2seq.evaluation.metrics import bleu_tokenizer
from seq2seq.files import atomic_folder, exclusive
from seq2seq.formats import browser, ctranslate2, huggingface
from seq2seq.formats.model_directory import describe_model, find_model
from seq2seq.formats.weights import load_model, write_seq2seq
from seq2seq.model.transformer import Transformer
from seq2seq.text.language import unknown_language
from seq2seq.training.records import last_start, metric_name, read_metrics, require_new_folder

UNKNOWN = "Not recorded: this model was exported without its run."

QUANTIZED = "ctranslate2", "argos", "browser"
"""Formats with a choice of the data type of the weights."""
MAX_LISTED = 20
"""Maximum number of directions that a model card lists."""

logger = logging.getLogger(__name__)

FORMATS: dict[str, tuple[Callable[..., None], str]] = {
    "ctranslate2": (ctranslate2.write_ctranslate2, ctranslate2.USAGE),
    "huggingface": (huggingface.write_huggingface, huggingface.USAGE),
    "argos": (ctranslate2.write_argos, ctranslate2.ARGOS_USAGE),
    "browser": (browser.write_browser, browser.USAGE),
    "seq2seq": (write_seq2seq, "`seq2seq translate {folder}{names} < FILE`"),
}
"""Function that writes a model to a folder with its card, and usage in Markdown, of each format.

The function raises UserError if the format does not support the model.
"""


def export(
    run: Path,
    output: Path,
    *,
    to: str,
    checkpoint: str | None = None,
    quantization: str | None = None,
    languages: Sequence[str] = (),
    keep_pieces: Sequence[Path] = (),
) -> None:
    """Export the best model of a run, or a model directory, to a new folder.

    to: key of `FORMATS`. quantization: data type of the weights, for the formats in `QUANTIZED`.
    languages: only the directions between them. keep_pieces: text files; pieces of the vocabulary
    that they do not need are dropped. Raises UserError, without writing anything, if the format
    does not support the model.
    """
    require_new_folder(output)
    require_files(keep_pieces)
    if quantization and to not in QUANTIZED:
        raise UserError(f"--quantization is for {', '.join(QUANTIZED)}")
    folder = find_model(run, checkpoint)
    described, tokenizer = describe_model(folder)
    if not described.translates:
        raise UserError(f"exports are for translation models, not for task={described.task}")
    if languages:
        described = replace(described, data=restricted(described.pairs, str(run), languages))
    vocabulary = None
    if keep_pieces:
        texts = chain.from_iterable(map(lines_of, keep_pieces))
        vocabulary = reduced(tokenizer, described.pairs.languages, texts)
    loaded, config = load_model(folder, "cpu", vocabulary), portable(described)
    model, tokenizer = loaded.model, loaded.tokenizer
    assert isinstance(model, Transformer)
    write, usage = FORMATS[to]
    files = [name for name in tokenizer.files if name in MODEL_FILES]
    direction = config.pairs.directions[0]
    names = f" --from {direction.source} --to {direction.target}"
    start, before = tokenizer.symbols(direction)
    text = usage.format(
        folder=output.name,
        source=files[0],
        target=files[-1],
        config=config,
        direction=direction,
        names=names if len(config.pairs.directions) > 1 else "",
        before=f"{before} + " if before else "",
        prefix=f"target_prefix=[{start}], " if start else "",
        without="[1:]" if start else "",
        **huggingface.usage(tokenizer, direction),
    )
    card = model_card(folder, config, tokenizer, model.num_parameters(), text)
    with exclusive(output), atomic_folder(output) as draft:
        (draft / "README.md").write_text(card, encoding="utf-8")
        (draft / "recipe.yaml").write_text(to_yaml(config), encoding="utf-8")
        write(model, tokenizer, config, draft, *filter(None, [quantization]))
    for key, value in vars(config.decoding).items():
        if (old := getattr(described.decoding, key)) != value:
            logger.warning("decoding.%s=%s becomes %s: not supported by %s", key, old, value, to)
    if to != "browser":
        logger.info("add a licence to %s", output / "README.md")


def export_page(
    runs: Sequence[Path],
    output: Path,
    *,
    checkpoint: str | None = None,
    quantization: str | None = None,
) -> None:
    """Export a model for each direction to a new folder, with a web page that translates.

    Takes the same arguments as `export`, and raises the same errors.
    """
    require_new_folder(output)
    folders: dict[Direction, Path] = {}
    for run in runs:
        described, _ = describe_model(find_model(run, checkpoint))
        direction = described.translates and described.pairs.directions[0]
        if not direction or not all(direction):
            raise UserError(f"--to browser needs models that translate; {run} does not")
        if direction in folders:
            raise UserError(
                f"{folders[direction]} and {run} both translate {direction}: name one RUN for it"
            )
        folders[direction] = run
    with exclusive(output), atomic_folder(output) as draft:
        for direction, run in folders.items():
            folder = draft / "-".join(direction)
            export(run, folder, to="browser", checkpoint=checkpoint, quantization=quantization)
        browser.write_page(draft, list(folders), quantization or "int8")
    for direction in folders:
        logger.info("add a licence to %s", output / "-".join(direction) / "README.md")
    logger.info("open http://localhost:8000 after: python -m http.server --directory %s", output)


def restricted(data: PairsConfig, name: str, languages: Sequence[str]) -> PairsConfig:
    """Return the data of a model with only the directions between some of its languages."""
    for language in languages:
        if language not in data.languages:
            known = unknown_language(language, data.languages)
            raise UserError(f"--languages: {name} has {known}")
    if not (data := data.restricted(languages)).train:
        raise UserError(f"--languages: {name} has no direction between {' and '.join(languages)}")
    return data


def portable(config: Config) -> Config:
    """Return a recipe without local folders and without search settings that CTranslate2 lacks."""
    config = with_paths(config, lambda path: Path(path).name)
    new = {key: getattr(DecodingConfig(), key) for key in UNSUPPORTED}
    return replace(config, decoding=replace(config.decoding, **new, penalty_form="power"))


def model_card(
    folder: Path, config: Config, tokenizer: Tokenizer, parameters: int, usage: str
) -> str:
    """Return a model card in Markdown, with metadata for the Hugging Face Hub.

    folder: model directory in its run. parameters: number of parameters. usage: Markdown text on
    how to use the exported model.
    """
    folder = folder.resolve()
    run = folder.parent.parent
    start = last_start(run)
    directions = [direction for direction in config.pairs.directions if all(direction)]
    languages = dict.fromkeys(code for direction in directions for code in direction)
    # Quoted, since YAML reads the code of Norwegian, no, as a boolean.
    codes = "".join(f"- {json.dumps(code)}\n" for code in languages)
    header = f"language:\n{codes}" if codes else ""
    tags = sorted({f"`{corpus.tag}`" for corpus in config.data.corpora if corpus.tag})
    prefixes = dict.fromkeys(map(tokenizer.prefix, config.pairs.directions))
    symbols = [f"`{x}`" for x in prefixes if x and not tokenizer.source.language_first]
    tagged = "".join(
        f"\n\nStart each sentence with {kind} and a space: {' or '.join(found)}."
        for kind, found in (("the symbol of its target language", symbols), ("a tag", tags))
        if found
    )
    listed = ",".join(f" from {source} to {target}" for source, target in directions)
    if len(directions) > MAX_LISTED:
        listed = f" between {len(languages)} languages"
    shape, initial = config.model, config.training.init_from
    recipe = f"\n```yaml\n{to_yaml(config).strip()}\n```\n" if start else ""
    origin = f", trained from the weights of {initial}" if initial else ""
    return f"""\
---
{header}pipeline_tag: translation
license: unknown # fill in the licence of the weights
---

# Translation{listed}

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
{recipe}"""


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
    data = config.pairs
    of_each = " of each direction" if len(data.directions) > 1 else ""
    part = f", first {sentences:,} sentences{of_each}" if sentences else ""
    tokenizers = ", ".join(dict.fromkeys(bleu_tokenizer(data, target) for target in data.targets))
    return (
        f"After update {number} (beam {config.decoding.validation_beam}{part}): {values} "
        f"(sacreBLEU, tokenizer {tokenizers})."
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
