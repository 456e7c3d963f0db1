"""The corpora that the arguments of `seq2seq new` name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seq2seq.config import DataConfig, PairsConfig
from seq2seq.errors import UserError
from seq2seq.preparation.corpora import open_corpus
from seq2seq.preparation.text import TextFiles, open_text

UNITS = {"translation": "pairs", "classification": "texts", "language_model": "characters"}
"""What the examples of a corpus are."""


@dataclass(frozen=True)
class Request:
    """What a recipe is written for."""

    name: str
    task: str
    data: Mapping[str, Any]
    """The section `data`, as `data_of_files` returns it."""
    minutes: float
    """Training time."""
    num_examples: int


def data_of_files(
    task: str, files: Mapping[str, Sequence[str]], source: str, target: str
) -> dict[str, Any]:
    """Return the section `data` of a recipe for files; raises UserError for unsuitable ones.

    files: of `train`, `dev` and `test`.
    """
    languages = {"source": source, "target": target} if task == "translation" else {}
    if not all(languages.values()):
        raise UserError("--source and --target name the languages: --source en --target de")
    if (source or target) and not languages:
        raise UserError(f"--source and --target are for translation, and not for --task {task}")
    data: dict[str, Any] = dict(languages)
    for split, names in files.items():
        corpora = corpora_of(names, split) if languages else list(names)
        if len(corpora) > 1 and (split != "train" or task == "language_model"):
            raise UserError(f"--{split}: name one corpus, not {len(corpora)}")
        if task == "language_model" and split != "train" and corpora:
            raise UserError(f"--{split}: parts of a language model's text are held out of it")
        if corpora:
            data[split] = corpora if split == "train" else corpora[0]
    return {"text": data["train"][0]} if task == "language_model" else data


def corpora_of(names: Sequence[str], split: str) -> list[Any]:
    """Return parallel corpora, for data.train: prefixes, .tsv files, or a source and a target file.

    split: for errors.
    """
    found: list[Any] = []
    rest = list(names)
    while rest:
        name = rest.pop(0)
        if name.removesuffix(".gz").endswith(".tsv") or not Path(name).exists():
            found.append(name)
        elif rest:
            found.append({"source": name, "target": rest.pop(0)})
        else:
            raise UserError(
                f"--{split}: {name} is alone: name the source file and the target file of the same "
                "lines, their prefix, or a .tsv file"
            )
    return found


def count_examples(data: DataConfig) -> int:
    """Return the number of training pairs, texts or characters; raises UserError for bad files."""
    if isinstance(data, PairsConfig):
        corpora = [open_corpus(data, corpus, "--train") for corpus in data.train]
        return sum(1 for corpus in corpora for _ in corpus.read())
    [corpus] = data.corpora
    text = open_text(corpus, "text", "--train")
    assert isinstance(text, TextFiles)  # no dataset
    return sum(map(len, text.texts()))
