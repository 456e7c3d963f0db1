"""Corpora given by the arguments of `seq2seq new`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seq2seq.config import DataConfig, PairsConfig
from seq2seq.errors import UserError
from seq2seq.preparation.corpora import open_corpus
from seq2seq.preparation.text import read_texts, text_files

UNITS = {"translation": "pairs", "classification": "texts", "language_model": "characters"}
"""Plural noun for the training examples of a task."""


@dataclass(frozen=True)
class Request:
    """Input of `seq2seq new`: the task, the data and the time."""

    name: str
    task: str
    data: Mapping[str, Any]
    """Section `data` of the recipe, from `data_of_files`."""
    minutes: float
    """Time limit of the training."""
    num_examples: int


def data_of_files(
    task: str, files: Mapping[str, Sequence[str]], source: str, target: str
) -> dict[str, Any]:
    """Return the section `data` of a recipe. Raises UserError for unsuitable files.

    files: names of files by split (`train`, `dev`, `test`).
    """
    languages = {"source": source, "target": target} if task == "translation" else {}
    if not all(languages.values()):
        raise UserError("give the languages, such as --source en --target de")
    if (source or target) and not languages:
        raise UserError(f"--source and --target are for translation, not for --task {task}")
    data: dict[str, Any] = dict(languages)
    for split, names in files.items():
        corpora = corpora_of(names, split, [source, target]) if languages else list(names)
        if len(corpora) > 1 and (split != "train" or task == "language_model"):
            raise UserError(f"--{split}: give one corpus, not {len(corpora)}")
        if task == "language_model" and split != "train" and corpora:
            raise UserError(f"--{split}: not for language models, which hold out parts of the text")
        if corpora:
            data[split] = corpora if split == "train" else corpora[0]
    return {"text": data["train"][0]} if task == "language_model" else data


def corpora_of(names: Sequence[str], split: str, languages: Sequence[str]) -> list[Any]:
    """Return parallel corpora for data.train: prefixes, .tsv files, or pairs of files.

    split: name of the split, for errors. languages: suffixes of the files of a prefix.
    """
    corpora: list[Any] = []
    remaining = list(names)
    while remaining:
        name = remaining.pop(0)
        files = [f"{name}.{language}{end}" for language in languages for end in ("", ".gz")]
        is_prefix = any(Path(file).exists() for file in files)
        if is_prefix or name.removesuffix(".gz").endswith(".tsv"):
            corpora.append(name)
        elif remaining:
            corpora.append({"source": name, "target": remaining.pop(0)})
        elif not Path(name).exists():
            corpora.append(name)  # an error will name the missing file
        else:
            raise UserError(
                f"--{split}: {name} is alone: give a source file and a target file, their common "
                "prefix, or a .tsv file"
            )
    return corpora


def count_examples(data: DataConfig) -> int:
    """Return the number of training pairs, texts or characters. Raises UserError for bad files."""
    if isinstance(data, PairsConfig):
        corpora = [open_corpus(data, corpus, "--train") for corpus in data.train]
        return sum(1 for corpus in corpora for _ in corpus.read())
    [corpus] = data.corpora
    return sum(map(len, read_texts(text_files(corpus.path or "", "--train"))))
