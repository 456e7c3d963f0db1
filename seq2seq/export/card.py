"""Model cards (Mitchell et al. 2019), written from what a run has recorded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from seq2seq.config import Config, to_yaml
from seq2seq.evaluation.metrics import NAMES, score
from seq2seq.training.records import last_start, read_metrics

_NO_METRICS = ("kind", "step", "minutes", "best", "stride")
"""Other numbers of a validation in metrics.jsonl."""
_RECIPE = "The whole recipe:"
_SETTINGS = "The model as a recipe here, in which nothing of its training is known:"
UNKNOWN = "not recorded: this model was exported without its run"


def model_card(folder: Path, config: Config, parameters: int, usage: str) -> str:
    """Return a model card in Markdown, with the front matter of the Hugging Face hub.

    folder: the model directory, whose run has recorded the training. parameters: their number.
    usage: how to use the model in its format, in Markdown.
    """
    folder = folder.resolve()
    run = folder.parent.parent
    start, validation = last_start(run), _validation(run, folder.name)
    initial = config.training.init_from
    languages = [config.pairs.source, config.pairs.target]
    languages = languages if all(languages) else []
    direction = f" from {languages[0]} to {languages[1]}" if languages else ""
    # Quoted: no, the code of Norwegian, would be a boolean.
    codes = "".join(["language:\n", *(f"- {json.dumps(code)}\n" for code in languages)])
    origin = ", trained with seq2seq" + (f" from the weights of {initial}" if initial else "")
    return f"""\
---
{codes if languages else ""}pipeline_tag: translation
license: unknown # fill in: the licence of these weights
---

# {config.task.replace("_", " ").capitalize()}{direction}

A {_kind(config)} with {parameters:,} parameters{origin if start else ""}.

## Use

{usage.strip()}{_tags(config)}

## Intended use

{_intended_use(direction)}

## Scores

{_scores(config, start, validation)}

## Training data

{_data(start)}

## Training

{_training(start)}

{_RECIPE if start else _SETTINGS}

```yaml
{to_yaml(config).strip()}
```
"""


def _validation(run: Path, name: str) -> dict[str, Any]:
    """Return the last validation of a model, by the name of its directory; {} if there is none."""
    kind, _, number = name.partition("_")
    kind = "average" if kind == "average" else "validation"
    records, _ = read_metrics(run)
    found = [each for each in records if each["kind"] == kind and str(each["step"]) == number]
    return found[-1] if found else {}


def _tags(config: Config) -> str:
    tags = sorted({corpus.tag for corpus in config.data.corpora if corpus.tag})
    if not tags:
        return ""
    named = " or ".join(f"`{tag}`" for tag in tags)
    return f"\n\nA text starts with the tag of its kind, and a space: {named}."


def _kind(config: Config) -> str:
    shape = config.model
    depths = {"encoder": shape.encoder_layers, "decoder": shape.decoder_layers}
    there = {stack: str(depth) for stack, depth in depths.items() if depth}
    only = "" if len(there) == 2 else "".join(f"{stack}-only " for stack in there)
    return (
        f"{only}Transformer of {' + '.join(there.values())} layers, {shape.dim} wide "
        f"({shape.norm}-norm, {shape.positions} positions, {shape.activation})"
    )


def _intended_use(direction: str) -> str:
    if not direction:
        return "Text like that of the training data below. Check its output before relying on it."
    return (
        f"Translating single sentences{direction}, of the "
        "kind of text that the training data below consist of; other text is translated worse. "
        "The model may leave out or invent parts of a sentence, names and numbers, and has the "
        "biases of its data: have translations that matter checked by a person."
    )


def _scores(config: Config, start: dict[str, Any], found: dict[str, Any]) -> str:
    if not found:
        reason = "this checkpoint was not validated" if start else UNKNOWN
        return f"On the development set: {reason}."
    rows = []
    # The signatures of the installed sacreBLEU, with the version of the one that was used.
    used = start.get("packages", {}).get("sacrebleu")
    tokenize = config.data.bleu_tokenizer
    signatures = {each.key: each.signature for each in score(["-"], [["-"]], tokenize=tokenize)}
    for name, value in found.items():
        if name in _NO_METRICS or not isinstance(value, int | float):
            continue
        signature, digits = "", 4
        if name in signatures:
            signature, digits = re.sub("version:.*", f"version:{used}", signatures[name]), 2
            signature = f"`{signature}`".replace("|", r"\|")
        rows.append(f"| {NAMES.get(name, name)} | {value:.{digits}f} | {signature} |")
    search = f", beam {config.decoding.validation_beam}" if "bleu" in found else ""
    sentences = config.training.validation_sentences
    part = f" (its first {sentences:,} sentences)" if sentences else ""
    return (
        f"On the development set{part}, after update {found.get('step')}{search}:\n\n"
        "| metric | value | signature |\n|---|---|---|\n" + "\n".join(rows)
    )


def _data(start: dict[str, Any]) -> str:
    if not start:
        return f"Files and checksums: {UNKNOWN}."
    data = start.get("data", {})
    rows = []
    for each in data.get("inputs", []):
        size = f"{each['bytes']:,}" if "bytes" in each else ""
        name = str(each.get("file") or each.get("dataset"))
        name = Path(name).name if Path(name).is_absolute() else name  # not this machine's folders
        rows.append(f"| {name} | {size} | `{each.get('sha256')}` |")
    splits = data.get("splits", {})
    unit = "pairs" if any("pairs" in facts for facts in splits.values()) else "tokens"
    names = sorted((name for name in splits if unit in splits[name]), reverse=True)
    sizes = ", ".join(f"{name} {splits[name][unit]:,}" for name in names)
    table = "| file or dataset | bytes | sha256 |\n|---|---|---|\n" + "\n".join(rows)
    return f"{table}\n\n{unit.capitalize()} after cleaning: {sizes}."


def _training(start: dict[str, Any]) -> str:
    if not start:
        return f"Commit, versions and hardware: {UNKNOWN}."
    packages = start.get("packages", {})
    versions = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    return (
        f"seq2seq at commit {start.get('commit') or 'unknown'} ({versions}), on "
        f"{start.get('device')} in {start.get('processes')} process(es), {start.get('precision')}, "
        f"seed {start.get('seed')}; started (or resumed last) at {start.get('time')}."
    )
