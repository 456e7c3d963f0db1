"""Corpora: sentence pairs from files and datasets, read once and block by block."""

from __future__ import annotations

import gzip
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import IO, Any, TypeVar

from seq2seq.config import CorpusConfig
from seq2seq.data.lines import complete, open_bytes, read_lines
from seq2seq.errors import UnfinishedError, UserError

TextPair = tuple[str, str]
Row = TypeVar("Row", bound=Sequence[Any])

BLOCK_PAIRS = 50_000
"""Number of pairs that are read, and given to a process, at once."""
BLOCK_BYTES = 1 << 24
"""Maximum size of a block: long texts, too, must fit into memory."""


@dataclass(frozen=True)
class Block:
    """Consecutive pairs of a corpus, not parsed yet, so that another process can do it."""

    corpus: Corpus
    first: int
    """Number of the first pair, counted from 1."""
    parts: tuple[list[Any], ...]
    """Lines of each file, or rows."""
    work: int
    """Part of the corpus's `num_bytes` that was read for it."""

    def __len__(self) -> int:
        return len(self.parts[0])

    def pairs(self) -> Iterator[TextPair]:
        """Yield the pairs; raises UserError for an invalid one."""
        return self.corpus.parse(self)


class Corpus(ABC):
    """Sentence pairs in a fixed order."""

    @property
    @abstractmethod
    def files(self) -> list[Path]:
        """The files of the corpus; none for a dataset of the hub."""

    @property
    def num_bytes(self) -> int | None:
        """Total size, of the files or as the dataset reports it; None if unknown."""
        return sum(path.stat().st_size for path in self.files) or None

    @abstractmethod
    def blocks(self, size: int, skip: int = 0) -> Iterator[Block]:
        """Read the corpus in blocks of `size` pairs, without the first `skip` pairs."""

    @abstractmethod
    def parse(self, block: Block) -> Iterator[TextPair]:
        """Yield the pairs of a block."""

    def __iter__(self) -> Iterator[TextPair]:
        return (pair for block in self.blocks(BLOCK_PAIRS) for pair in block.pairs())


@dataclass(frozen=True)
class LineFiles(Corpus):
    """Two files, aligned line by line."""

    source: Path
    target: Path

    def __str__(self) -> str:
        return f"{self.source} + {self.target}"

    @property
    def files(self) -> list[Path]:
        return [self.source, self.target]

    def blocks(self, size: int, skip: int = 0) -> Iterator[Block]:
        with open_bytes(self.source) as source, open_bytes(self.target) as target:
            lines = zip_longest(
                complete(source, str(self.source)),
                complete(target, str(self.target)),
                fillvalue=b"",  # lines are never empty
            )
            counts = [skip, skip]
            for rows, work in _grouped(islice(lines, skip, None), size, [source, target]):
                if not all(rows[-1]):
                    for row in chain(rows, lines):
                        counts = [n + bool(line) for n, line in zip(counts, row, strict=True)]
                    raise UserError(
                        f"{self.source} has {counts[0]} lines but {self.target} has {counts[1]}: "
                        "they must be aligned line by line"
                    )
                parts = tuple(map(list, zip(*rows, strict=True)))
                yield Block(self, counts[0] + 1, parts, work)
                counts = [count + len(rows) for count in counts]

    def parse(self, block: Block) -> Iterator[TextPair]:
        sources, targets = block.parts
        return zip(
            read_lines(sources, str(self.source), first=block.first),
            read_lines(targets, str(self.target), first=block.first),
            strict=True,
        )


@dataclass(frozen=True)
class TabFile(Corpus):
    """One file of `source<TAB>target` lines; further columns are ignored."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def files(self) -> list[Path]:
        return [self.path]

    def blocks(self, size: int, skip: int = 0) -> Iterator[Block]:
        with open_bytes(self.path) as stream:
            lines = islice(complete(stream, str(self.path)), skip, None)
            yield from _numbered(self, _grouped(lines, size, [stream]), skip)

    def parse(self, block: Block) -> Iterator[TextPair]:
        lines = read_lines(block.parts[0], str(self.path), first=block.first)
        for number, line in enumerate(lines, start=block.first):
            yield self.parse_line(line, number)

    def parse_line(self, line: str, number: int) -> TextPair:
        """Return the pair of a line."""
        columns = line.split("\t")
        if len(columns) < 2:
            raise UserError(
                f"{self.path}, line {number}: no tab between source and target: {line[:80]!r}; "
                "each line is SOURCE<TAB>TARGET"
            )
        return columns[0], columns[1]


class LabelledFile(TabFile):
    """One file of `label<TAB>text` lines, read as pairs of text and label."""

    def parse_line(self, line: str, number: int) -> TextPair:
        label, tab, text = line.partition("\t")
        if not tab or not label.strip():
            raise UserError(
                f"{self.path}, line {number}: no label before a tab: {line[:80]!r}; each line is "
                "LABEL<TAB>TEXT"
            )
        return text, label.strip()


@dataclass(frozen=True)
class HubDataset(Corpus):
    """A Hugging Face dataset, by hub name or local folder, streamed.

    The two languages are columns, or keys of a column `translation`.
    """

    name: str
    subset: str | None
    split: str
    source: str
    target: str

    def __str__(self) -> str:
        return ":".join(part for part in (self.name, self.subset, self.split) if part)

    @property
    def files(self) -> list[Path]:
        folder = Path(self.name)
        return sorted(p for p in folder.rglob("*") if p.is_file()) if folder.is_dir() else []

    @property
    def num_bytes(self) -> int | None:
        with self._explained():
            splits = self.open().info.splits or {}
        return splits[self.split].num_bytes if self.split in splits else None

    def blocks(self, size: int, skip: int = 0) -> Iterator[Block]:
        return _numbered(self, _grouped(self._fields(skip), size, []), skip)

    def parse(self, block: Block) -> Iterator[TextPair]:
        # A sentence is a line here, but fields of a dataset may contain line breaks.
        return ((_one_line(source), _one_line(target)) for source, target in block.parts[0])

    def _fields(self, skip: int) -> Iterator[TextPair]:
        for row in self._rows(skip):
            row = row.get("translation", row)
            missing = [key for key in (self.source, self.target) if key not in row]
            if missing:
                raise UserError(
                    f"dataset {self}: no column '{missing[0]}'; its columns are "
                    f"{', '.join(map(str, row))}: name them with data.source and data.target"
                )
            source, target = row[self.source], row[self.target]
            yield "" if source is None else str(source), "" if target is None else str(target)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # datasets raises dozens of kinds, including network errors
            raise UnfinishedError(
                f"dataset {self} cannot be read: {' '.join(str(error).split())}; "
                "check the name and the network, or use a local folder; the same command resumes"
            ) from None

    def _rows(self, skip: int) -> Iterator[dict[str, Any]]:
        with self._explained():
            rows = self.open()
            # Labels are numbers, -1 for none; their names are needed here.
            classes = {key: feature for key, feature in (rows.features or {}).items()
                       if hasattr(feature, "int2str")}  # fmt: skip
            for row in rows.skip(skip) if skip else rows:
                for key, feature in classes.items():
                    number = row[key]
                    row[key] = None if number is None or number < 0 else feature.int2str(number)
                yield row

    def open(self) -> Any:
        """Open the dataset for iteration."""
        import datasets

        folder = Path(self.name)
        if (folder / "dataset_dict.json").exists():
            return datasets.load_from_disk(folder)[self.split].to_iterable_dataset()
        if (folder / "state.json").exists():
            return datasets.load_from_disk(folder).to_iterable_dataset()
        return datasets.load_dataset(self.name, self.subset, split=self.split, streaming=True)


class HubText(HubDataset):
    """A dataset with one column of text, of which each row becomes a line."""

    def parse(self, block: Block) -> Iterator[TextPair]:
        return ((f"{text}\n", "") for text, _ in block.parts[0])


def _one_line(text: str) -> str:
    return text.replace("\r\n", " ").replace("\n", " ")


def _numbered(
    corpus: Corpus, groups: Iterator[tuple[list[Any], int]], skip: int
) -> Iterator[Block]:
    first = skip + 1
    for rows, work in groups:
        yield Block(corpus, first, (rows,), work)
        first += len(rows)


def _grouped(
    rows: Iterator[Row], size: int, streams: Sequence[IO[bytes]]
) -> Iterator[tuple[list[Row], int]]:
    """Yield `size` rows at a time, or BLOCK_BYTES of them, with the bytes read from the streams.

    Without streams: the length of the rows.
    """
    group: list[Row] = []
    num_bytes = position = 0
    for row in rows:
        group.append(row)
        num_bytes += len(row) if isinstance(row, bytes) else sum(map(len, row))
        if len(group) >= size or num_bytes >= BLOCK_BYTES:
            before, position = position, sum(map(_position, streams))
            yield group, position - before if streams else num_bytes
            group, num_bytes = [], 0
    if group:
        yield group, sum(map(_position, streams)) - position if streams else num_bytes


def _position(stream: IO[bytes]) -> int:
    """Return the number of bytes that were read from a file, before decompression."""
    raw = stream.fileobj if isinstance(stream, gzip.GzipFile) else stream
    return int(raw.tell()) if raw else 0


def open_labelled(config: CorpusConfig, key: str, text: str, label: str) -> Corpus:
    """Open a file of labelled texts, or a dataset with the columns `text` and `label`."""
    if config.dataset and not config.path:
        split = config.split or key.rpartition(".")[2]
        return HubDataset(config.dataset, config.subset, split, text, label)
    if not config.path or config.dataset or config.source or config.target:
        raise UserError(f"{key}: give a file of `label<TAB>text` lines as its path, or a dataset")
    return LabelledFile(_existing(Path(config.path), key))


def open_corpus(config: CorpusConfig, source: str, target: str, key: str) -> Corpus:
    """Open a parallel corpus; key: its key in the recipe, for errors."""
    given = [
        name
        for name, value in [
            ("path", config.path),
            ("source and target", config.source or config.target),
            ("dataset", config.dataset),
        ]
        if value
    ]
    if len(given) != 1:
        raise UserError(
            f"{key}: give exactly one of path, source and target, dataset; "
            f"given: {', '.join(given) or 'none'}"
        )
    if config.dataset:
        split = config.split or key.rpartition(".")[2]
        return HubDataset(config.dataset, config.subset, split, source, target)
    if config.path and config.path.removesuffix(".gz").endswith(".tsv"):
        return TabFile(_existing(Path(config.path), key))
    if config.path:
        return LineFiles(*(_by_prefix(config.path, language, key) for language in (source, target)))
    if not (config.source and config.target):
        raise UserError(f"{key}: source and target files go together; one is missing")
    return LineFiles(_existing(Path(config.source), key), _existing(Path(config.target), key))


def _by_prefix(prefix: str, language: str, key: str) -> Path:
    plain, zipped = Path(f"{prefix}.{language}"), Path(f"{prefix}.{language}.gz")
    if Path(prefix).is_file() and not (plain.is_file() or zipped.is_file()):
        raise UserError(
            f"{key}: {prefix} is a file; give the common prefix of both languages' files, to which "
            f".{language} is added"
        )
    return zipped if zipped.is_file() and not plain.is_file() else _existing(plain, key)


def _existing(path: Path, key: str) -> Path:
    if path.is_dir():
        raise UserError(f"{key}: {path} is a folder; name a file, or the folder as `dataset`")
    if not path.is_file():
        raise UserError(f"{key}: file not found: {path}")
    return path
