"""`seq2seq new`: write a recipe sized for a corpus and this machine."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seq2seq.config import TASKS, DataConfig, PairsConfig, check_name, from_tree
from seq2seq.errors import UserError
from seq2seq.files import write_file
from seq2seq.planning.fine_tune import fine_tuning, initial_model
from seq2seq.planning.plan import UNITS, Request, sized_recipe
from seq2seq.preparation.corpora import open_corpus
from seq2seq.preparation.text import read_texts, text_files

MIN_EXAMPLES = 100
"""Minimum number of training examples."""
FEW_PAIRS = 20_000
"""Number of pairs below which quality is poor without a pre-trained model."""

logger = logging.getLogger(__name__)


def new_recipe(
    name: str,
    files: Mapping[str, Sequence[str]],
    *,
    task: str,
    source: str,
    target: str,
    minutes: float,
    run: Path | None = None,
) -> Path:
    """Write recipes/NAME.yaml and return its path.

    files: names of files by split (`train`, `dev`, `test`). minutes: time limit of the training.
    run: start from its model. Raises UserError for unreadable corpora or an existing recipe.
    """
    path = Path("recipes") / f"{name}.yaml"
    check_name(name)
    if path.exists():
        raise UserError(f"{path} exists: choose another name or remove it")
    initial = initial_model(run, source, target) if run else None
    if initial:
        task, source, target = initial.task, initial.pairs.source, initial.pairs.target
    data = data_of_files(task, files, source, target)
    count = count_examples(from_tree(TASKS[task].defaults.data, data, "--train", "data"))
    logger.info("corpus: %s %s", f"{count:,}", UNITS[task])
    if count < MIN_EXAMPLES:
        raise UserError(
            f"--train: {', '.join(files['train'])} has {count} {UNITS[task]}: at least "
            f"{MIN_EXAMPLES} are needed, and tens of thousands for a useful model"
        )
    request = Request(name, task, data, minutes, count)
    if run and initial:
        text = fine_tuning(request, run, initial)
    else:
        if task == "translation" and count < FEW_PAIRS:
            logger.warning(
                "only %s pairs: expect poor quality (see docs/sizes.md). Add data, or start from a "
                "trained model with --from RUN",
                f"{count:,}",
            )
        text = sized_recipe(request)
    path.parent.mkdir(exist_ok=True)
    write_file(path, text)
    return path


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
