"""Corpora: sentence pairs from files and datasets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from seq2seq.data.lines import lines_of
from seq2seq.errors import UnfinishedError, UserError

TextPair = tuple[str, str]

BATCH_PAIRS = 50_000
"""Number of pairs that are read at once."""
BATCH_CHARACTERS = 1 << 24
"""Maximum size of a batch: long texts, too, must fit into memory."""


class Corpus(ABC):
    """Sentence pairs in a fixed order."""

    @property
    @abstractmethod
    def files(self) -> list[Path]:
        """The files of the corpus; none for a dataset of the hub."""

    @abstractmethod
    def __iter__(self) -> Iterator[TextPair]:
        """Read the pairs; raises UserError for an invalid one."""

    def batches(self) -> Iterator[list[TextPair]]:
        """Read BATCH_PAIRS at a time, or BATCH_CHARACTERS."""
        batch: list[TextPair] = []
        characters = 0
        for pair in self:
            batch.append(pair)
            characters += len(pair[0]) + len(pair[1])
            if len(batch) == BATCH_PAIRS or characters >= BATCH_CHARACTERS:
                yield batch
                batch, characters = [], 0
        if batch:
            yield batch


class FileCorpus(Corpus):
    """Files that are read line by line, all at the same time."""

    def __init__(self, *files: Path) -> None:
        self._files = list(files)

    def __str__(self) -> str:
        return " + ".join(map(str, self._files))

    @property
    def files(self) -> list[Path]:
        return self._files

    def __iter__(self) -> Iterator[TextPair]:
        yield from self.pairs(zip_longest(*map(lines_of, self._files)))

    @abstractmethod
    def pairs(self, lines: Iterator[tuple[Any, ...]]) -> Iterator[TextPair]:
        """Yield the pair of each tuple with a line of each file, None after the file's end."""


class LineFiles(FileCorpus):
    """Two files, aligned line by line."""

    def pairs(self, lines: Iterator[tuple[Any, ...]]) -> Iterator[TextPair]:
        for number, pair in enumerate(lines):
            if None in pair:
                more = 1 + sum(1 for _ in lines)
                counts = [number if line is None else number + more for line in pair]
                raise UserError(
                    f"{self.files[0]} has {counts[0]} lines but {self.files[1]} has {counts[1]}: "
                    "they must be aligned line by line"
                )
            yield pair[0], pair[1]


class TabFile(FileCorpus):
    """A file of `source<TAB>target` lines; further columns are ignored."""

    def pairs(self, lines: Iterator[tuple[Any, ...]]) -> Iterator[TextPair]:
        for number, [line] in enumerate(lines, start=1):
            columns = line.split("\t")
            if len(columns) < 2:
                raise UserError(
                    f"{self}, line {number}: no tab between source and target: {line[:80]!r}; each "
                    "line is SOURCE<TAB>TARGET"
                )
            yield columns[0], columns[1]


class LabelledFile(FileCorpus):
    """A file of `label<TAB>text` lines, read as pairs of text and label."""

    def pairs(self, lines: Iterator[tuple[Any, ...]]) -> Iterator[TextPair]:
        for number, [line] in enumerate(lines, start=1):
            label, tab, text = line.partition("\t")
            if not tab or not label.strip():
                raise UserError(
                    f"{self}, line {number}: no label before a tab: {line[:80]!r}; each line is "
                    "LABEL<TAB>TEXT"
                )
            yield text, label.strip()


@dataclass(frozen=True)
class HubDataset(Corpus):
    """A Hugging Face dataset, by hub name or local folder, streamed.

    The columns of a pair can also be keys of a column `translation`.
    """

    name: str
    subset: str | None
    split: str
    columns: tuple[str, ...]

    def __str__(self) -> str:
        return ":".join(part for part in (self.name, self.subset, self.split) if part)

    @property
    def files(self) -> list[Path]:
        folder = Path(self.name)
        return sorted(p for p in folder.rglob("*") if p.is_file()) if folder.is_dir() else []

    def __iter__(self) -> Iterator[TextPair]:
        # A sentence is a line here, but fields of a dataset may contain line breaks.
        return ((_one_line(source), _one_line(target)) for source, target in self.rows())

    def rows(self) -> Iterator[list[str]]:
        """Yield the columns of each row; a missing value is an empty text."""
        try:
            rows = self.open()
            # Labels are numbers, -1 for none; their names are needed here.
            features = (rows.features or {}).items()
            classes = {key: kind for key, kind in features if hasattr(kind, "int2str")}
            for row in rows:
                for key, kind in classes.items():
                    number = row[key]
                    row[key] = None if number is None or number < 0 else kind.int2str(number)
                row = row.get("translation", row)
                for key in self.columns:
                    if key not in row:
                        raise UserError(
                            f"dataset {self}: no column {key!r}; its columns are "
                            f"{', '.join(map(str, row))}: name them with data.source and "
                            "data.target"
                        )
                yield ["" if row[key] is None else str(row[key]) for key in self.columns]
        except UserError:
            raise
        except Exception as error:  # datasets raises dozens of kinds, including network errors
            raise UnfinishedError(
                f"dataset {self} cannot be read: {' '.join(str(error).split())}; "
                "check the name and the network, or use a local folder; the same command reads it "
                "again"
            ) from None

    def open(self) -> Any:
        """Open the dataset for iteration."""
        import datasets

        folder = Path(self.name)
        if (folder / "dataset_dict.json").exists():
            return datasets.load_from_disk(folder)[self.split].to_iterable_dataset()
        if (folder / "state.json").exists():
            return datasets.load_from_disk(folder).to_iterable_dataset()
        return datasets.load_dataset(self.name, self.subset, split=self.split, streaming=True)


def _one_line(text: str) -> str:
    return text.replace("\r\n", " ").replace("\n", " ")
