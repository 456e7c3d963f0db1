"""The corpora that the arguments of `seq2seq new` name, as a recipe names them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from seq2seq.config import CorpusConfig, PairsConfig, from_tree
from seq2seq.errors import UserError
from seq2seq.preparation.corpora import Corpus
from seq2seq.preparation.formats import SentencePairs


def corpora_of(files: Sequence[str], source: str, target: str, flag: str) -> list[Any]:
    """Return parallel corpora, for data.train: prefixes, .tsv files, or files in pairs.

    Files that are neither are taken two at a time, source and target. flag: for errors.
    """
    found: list[Any] = []
    rest = list(files)
    while rest:
        name = rest.pop(0)
        if _plain(name).endswith(".tsv"):
            found.append(existing(name, flag))
        elif not Path(name).exists() and _has_suffixes(name, source, target):
            found.append(name)
        else:
            if not rest:
                raise UserError(
                    f"{flag}: {existing(name, flag)} is alone: name the {source} file and the "
                    f"{target} file of the same lines, their prefix, or a .tsv file"
                )
            pair = [existing(name, flag), existing(rest.pop(0), flag)]
            if _plain(pair[0]).endswith(f".{target}") and _plain(pair[1]).endswith(f".{source}"):
                pair.reverse()
            prefix = _plain(pair[0]).removesuffix(f".{source}")
            is_prefix = {_plain(each) for each in pair} == {f"{prefix}.{source}",
                                                            f"{prefix}.{target}"}  # fmt: skip
            found.append(prefix if is_prefix else {"source": pair[0], "target": pair[1]})
    return found


def one_file(files: Sequence[str], flag: str) -> str:
    """Return the only file or folder."""
    if len(files) != 1:
        raise UserError(f"{flag}: name one file, not {len(files)}")
    return existing(files[0], flag)


def require_no_languages(source: str, target: str, task: str) -> None:
    """Raise UserError if languages are given for a task without them."""
    if source or target:
        raise UserError(f"--source and --target are for translation, and not for --task {task}")


def write_sample(data: PairsConfig, rows: Sequence[Sequence[str]], folder: Path) -> PairsConfig:
    """Write a corpus of tab-separated rows; return a section `data` that reads only that."""
    path = folder / "sample.tsv"
    lines = ("\t".join(column.replace("\t", " ") for column in row) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    size = max(2, len(rows) // 20)
    corpus = CorpusConfig(path=str(path))
    return replace(data, train=(corpus,), dev=None, test=None, dev_size=size, test_size=0)


def _plain(name: str) -> str:
    return name.removesuffix(".gz")


def _has_suffixes(prefix: str, *languages: str) -> bool:
    return all(
        Path(f"{prefix}.{language}{zipped}").is_file()
        for language in languages
        for zipped in ("", ".gz")
        if zipped == "" or not Path(f"{prefix}.{language}").is_file()
    )


def existing(name: str, flag: str) -> str:
    """Return the name of a file; raises UserError if there is none."""
    if not Path(name).exists():
        raise UserError(f"{flag}: file not found: {name}")
    return name


def opened(data: dict[str, Any]) -> list[Corpus]:
    """Open the training corpora of a section `data` of pairs."""
    named = [from_tree(CorpusConfig(), each, "--train") for each in data["train"]]
    pairs = SentencePairs(PairsConfig(source=data["source"], target=data["target"]))
    return [pairs.open(each, "--train") for each in named]
