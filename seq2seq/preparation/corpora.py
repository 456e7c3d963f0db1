"""Corpora of sentence pairs or labelled texts, from files and datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seq2seq.config import CorpusConfig, Direction, LabelledConfig, PairsConfig
from seq2seq.data.lines import lines_of
from seq2seq.errors import UnfinishedError, UserError

TextPair = tuple[str, str]

BATCH_PAIRS = 50_000
"""Maximum number of pairs per batch."""
BATCH_CHARACTERS = 1 << 24
"""Characters after which a batch ends: long texts must fit into memory, too."""


@dataclass(frozen=True, eq=False)
class Corpus:
    """Sentence pairs, or texts with labels, in a fixed order."""

    split: str
    """Role: `train`, `dev`, `test` or `exclude`."""
    direction: Direction
    tag: str | None
    name: str
    files: list[Path]
    """Files of the corpus. Empty for a dataset from the hub."""
    read: Callable[[], Iterator[TextPair]]
    """Yields the pairs, without tags. Raises UserError for an invalid pair."""
    scores: Path | None = None
    """File with a score per pair."""

    def batches(self) -> Iterator[list[TextPair]]:
        """Yield batches of BATCH_PAIRS pairs or about BATCH_CHARACTERS characters."""
        batch: list[TextPair] = []
        characters = 0
        for pair in self.read():
            batch.append(pair)
            characters += len(pair[0]) + len(pair[1])
            if len(batch) == BATCH_PAIRS or characters >= BATCH_CHARACTERS:
                yield batch
                batch, characters = [], 0
        if batch:
            yield batch

    def reversed(self) -> Corpus:
        """Return the corpus with source and target swapped."""
        direction = Direction(self.direction.target, self.direction.source)
        name, read = f"{self.name} (reversed)", lambda: ((b, a) for a, b in self.read())
        return replace(self, direction=direction, name=name, read=read)


def open_corpora(data: PairsConfig) -> list[Corpus]:
    """Open all corpora of a recipe, training corpora first, and their reverse after each."""
    opened: list[Corpus] = []
    for split in ("train", "dev", "test", "exclude"):
        for corpus in getattr(data, split):
            found = open_corpus(data, corpus, f"data.{split}")
            opened += [found, found.reversed()] if corpus.reverse else [found]
    return opened


def open_corpus(data: PairsConfig, corpus: CorpusConfig, key: str) -> Corpus:
    """Open a corpus of the section `data`. key: key of the corpus in the recipe, for errors."""
    labelled = isinstance(data, LabelledConfig)
    given = [bool(corpus.path), bool(corpus.source or corpus.target), bool(corpus.dataset)]
    if sum(given) != 1 or (labelled and given[1]):
        forms = "path or dataset" if labelled else "path, source and target, or dataset"
        raise UserError(f"{key}: give exactly one of {forms}")
    split, direction = key.rpartition(".")[2], data.directions_of(corpus)[0]
    scores = existing_file(corpus.scores, f"{key}: scores") if corpus.scores else None
    if corpus.dataset:
        source, target = direction
        columns = source or "text", target or "label"  # a translation has both languages
        dataset = HubDataset(corpus.dataset, corpus.subset, corpus.split or split, columns)
        name, files, pairs = str(dataset), dataset.files, dataset.pairs
        return Corpus(split, direction, corpus.tag, name, files, pairs, scores)
    read: Callable[..., Iterator[TextPair]] = _aligned
    if corpus.path and (labelled or corpus.path.removesuffix(".gz").endswith(".tsv")):
        read, files = partial(_tab_separated, labelled), [existing_file(corpus.path, key)]
    elif corpus.path:
        files = [_by_prefix(corpus.path, name, key) for name in direction]
    elif corpus.source and corpus.target:
        files = [existing_file(name, key) for name in (corpus.source, corpus.target)]
    else:
        raise UserError(f"{key}: give both source and target")
    name = " + ".join(map(str, files))
    return Corpus(split, direction, corpus.tag, name, files, partial(read, *files), scores)


def _by_prefix(prefix: str, language: str, key: str) -> Path:
    plain, zipped = Path(f"{prefix}.{language}"), Path(f"{prefix}.{language}.gz")
    if Path(prefix).is_file() and not (plain.is_file() or zipped.is_file()):
        raise UserError(
            f"{key}: {prefix} is a file; give the common prefix of both files, without .{language}"
        )
    return zipped if zipped.is_file() and not plain.is_file() else existing_file(plain, key)


def read_scores(path: Path) -> NDArray[np.float64]:
    """Return the number at the end of each line. Raises UserError if a line has none."""
    scores = []
    for number, line in enumerate(lines_of(path), start=1):
        try:
            scores.append(float(line.rpartition("\t")[2]))
        except ValueError:
            raise UserError(f"{path}, line {number}: {line[:80]!r} is not a score") from None
    return np.array(scores)


def existing_file(name: str | Path | None, key: str) -> Path:
    """Return the path of a file. Raises UserError, with the key, if it does not exist."""
    path = Path(name or "")
    if path.is_dir():
        raise UserError(f"{key}: {path} is a folder: give a file, or give the folder as `dataset`")
    if not path.is_file():
        raise UserError(f"{key}: file not found: {path}")
    return path


def _aligned(source: Path, target: Path) -> Iterator[TextPair]:
    """Yield the pairs of two aligned files."""
    lines = zip_longest(lines_of(source), lines_of(target))
    for number, pair in enumerate(lines):
        if None in pair:
            more = 1 + sum(1 for _ in lines)
            counts = [number if line is None else number + more for line in pair]
            raise UserError(
                f"{source} has {counts[0]} lines but {target} has {counts[1]}: they must be "
                "aligned line by line"
            )
        yield pair


def _tab_separated(labelled: bool, path: Path) -> Iterator[TextPair]:
    """Yield the pairs of SOURCE<TAB>TARGET or LABEL<TAB>TEXT lines, texts before labels.

    Columns after the target are ignored.
    """
    for number, line in enumerate(lines_of(path), start=1):
        first, tab, rest = line.partition("\t")
        if not tab or (labelled and not first.strip()):
            form = "LABEL<TAB>TEXT" if labelled else "SOURCE<TAB>TARGET"
            raise UserError(f"{path}, line {number}: {line[:80]!r} is not {form}")
        yield (rest, first.strip()) if labelled else (first, rest.partition("\t")[0])


@dataclass(frozen=True)
class HubDataset:
    """Streamed Hugging Face dataset, given by hub name or local folder.

    The columns may also be keys of a column `translation`.
    """

    name: str
    subset: str | None
    split: str
    columns: tuple[str, ...]

    def __str__(self) -> str:
        return ":".join(part for part in (self.name, self.subset, self.split) if part)

    @property
    def files(self) -> list[Path]:
        """Files of a local folder."""
        folder = Path(self.name)
        return sorted(p for p in folder.rglob("*") if p.is_file()) if folder.is_dir() else []

    def pairs(self) -> Iterator[TextPair]:
        """Yield the pairs of two columns. Line breaks in a text become spaces."""
        for row in self.rows():
            source, target = (text.replace("\r\n", " ").replace("\n", " ") for text in row)
            yield source, target

    def rows(self) -> Iterator[list[str]]:
        """Yield the columns of each row. A missing value becomes an empty text."""
        try:
            rows = self.open()
            features = (rows.features or {}).items()
            classes = {key: kind for key, kind in features if hasattr(kind, "int2str")}
            for row in rows:
                for key, kind in classes.items():  # names instead of numbers; -1: no label
                    number = row[key]
                    row[key] = None if number is None or number < 0 else kind.int2str(number)
                row = row.get("translation", row)
                for key in self.columns:
                    if key not in row:
                        raise UserError(
                            f"dataset {self}: no column {key!r}; the columns are "
                            f"{', '.join(map(str, row))}: set data.source and data.target"
                        )
                yield ["" if row[key] is None else str(row[key]) for key in self.columns]
        except UserError:
            raise
        except Exception as error:  # datasets raises many types of exceptions
            raise UnfinishedError(
                f"dataset {self} cannot be read: {' '.join(str(error).split())}; "
                "check the name and the network, or use a local folder, and run the command again"
            ) from None

    def open(self) -> Any:
        """Open the dataset for iteration."""
        import datasets

        folder = Path(self.name)
        if not any((folder / name).exists() for name in ("dataset_dict.json", "state.json")):
            return datasets.load_dataset(self.name, self.subset, split=self.split, streaming=True)
        saved = datasets.load_from_disk(folder)
        return (saved[self.split] if isinstance(saved, dict) else saved).to_iterable_dataset()
