"""Pairs of sentences out of files and data sets, one at a time, never a whole corpus in memory."""

from __future__ import annotations

import codecs
import gzip
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import xxhash

from seq2seq.config import CorpusConfig
from seq2seq.errors import UnfinishedError, UserError

Pair = tuple[str, str]
Row = TypeVar("Row", bound=Sequence[Any])

BLOCK_PAIRS = 50_000
"""Pairs that are read, and that a process is handed, at once."""
BLOCK_BYTES = 1 << 24
"""Or their bytes, if that is less: long texts, too, must fit into memory."""


def read_lines(
    stream: Iterable[bytes], name: str, *, errors: str = "strict", first: int = 1
) -> Iterator[str]:
    r"""Decode UTF-8 lines, split at \n alone, without their line ends (\n or \r\n).

    A byte order mark, with which Windows programs begin a file, is left out. errors: `strict`
    raises UserError with file and line number, `replace` puts U+FFFD. first: the number of the
    first line.
    """
    for number, line in enumerate(_whole_stream(stream, name), start=first):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        line = line[:-1] if line.endswith(b"\n") else line
        line = line[:-1] if line.endswith(b"\r") else line
        try:
            yield line.decode("utf-8", errors)
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name}, line {number}: not UTF-8 (byte {error.start + 1} is "
                f"0x{line[error.start]:02x}); convert the file, for instance with iconv"
            ) from None


def _whole_stream(stream: Iterable[bytes], name: str) -> Iterator[bytes]:
    try:
        yield from stream
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{name} is not a whole gzip file: {error}") from None


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file, or the content of one that ends in .gz, for reading bytes."""
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    return path.open("rb")


def read_file(path: Path) -> list[str]:
    """Return all lines of a file; for translations and references, which fit into memory."""
    try:
        with open_bytes(path) as stream:
            return list(read_lines(stream, str(path)))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


@dataclass(frozen=True)
class Block:
    """Consecutive pairs of a corpus as they were read, so that another process takes them apart."""

    corpus: Corpus
    first: int
    """Number of the first pair, from 1."""
    parts: tuple[list[Any], ...]
    """Lines of each file, or rows."""
    work: int
    """Bytes of the corpus that were read for it, as `num_bytes` counts them."""

    def __len__(self) -> int:
        return len(self.parts[0])

    @property
    def digest(self) -> str:
        """What changes when a byte of the block does."""
        found = xxhash.xxh3_64()
        for part in self.parts:
            for row in part:
                found.update(row if isinstance(row, bytes) else f"{row[0]}\t{row[1]}\n".encode())
        return found.hexdigest()

    def pairs(self) -> Iterator[Pair]:
        """Yield the pairs; raises UserError where one is broken."""
        return self.corpus.pairs_of(self)


class Corpus(ABC):
    """Pairs in their order, read anew each time."""

    @property
    @abstractmethod
    def files(self) -> list[Path]:
        """The files that hold it, if they are on this machine."""

    @property
    def num_bytes(self) -> int | None:
        """How much there is to read; of files, their size. None where that is not known."""
        return sum(path.stat().st_size for path in self.files) or None

    @abstractmethod
    def blocks(self, size: int) -> Iterator[Block]:
        """Read the whole corpus, `size` pairs at a time."""

    @abstractmethod
    def pairs_of(self, block: Block) -> Iterator[Pair]:
        """Take a block apart."""

    def __iter__(self) -> Iterator[Pair]:
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

    def blocks(self, size: int) -> Iterator[Block]:
        with open_bytes(self.source) as source, open_bytes(self.target) as target:
            lines = zip_longest(
                _whole_stream(source, str(self.source)),
                _whole_stream(target, str(self.target)),
                fillvalue=b"",  # which no line is
            )
            counts = [0, 0]
            for rows, work in _grouped(lines, size, [source, target]):
                if not all(rows[-1]):
                    for row in chain(rows, lines):
                        counts = [n + bool(line) for n, line in zip(counts, row, strict=True)]
                    raise UserError(
                        f"{self.source} has {counts[0]} lines but {self.target} has {counts[1]}: "
                        "line n of the one must translate line n of the other"
                    )
                parts = tuple(map(list, zip(*rows, strict=True)))
                yield Block(self, counts[0] + 1, parts, work)
                counts = [count + len(rows) for count in counts]

    def pairs_of(self, block: Block) -> Iterator[Pair]:
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

    def blocks(self, size: int) -> Iterator[Block]:
        with open_bytes(self.path) as stream:
            lines = _whole_stream(stream, str(self.path))
            yield from _blocks_of(self, lines, size, [stream])

    def pairs_of(self, block: Block) -> Iterator[Pair]:
        lines = read_lines(block.parts[0], str(self.path), first=block.first)
        for number, line in enumerate(lines, start=block.first):
            yield self.pair_of(line, number)

    def pair_of(self, line: str, number: int) -> Pair:
        """Take a line apart."""
        columns = line.split("\t")
        if len(columns) < 2:
            raise UserError(
                f"{self.path}, line {number}: no tab between source and target: {line!r}"
            )
        return columns[0], columns[1]


class LabelledFile(TabFile):
    """One file of `label<TAB>text` lines, read as pairs of text and label."""

    def pair_of(self, line: str, number: int) -> Pair:
        label, tab, text = line.partition("\t")
        if not tab or not label.strip():
            raise UserError(
                f"{self.path}, line {number}: no label before a tab: {line[:80]!r}; each line is "
                "LABEL<TAB>TEXT"
            )
        return text, label.strip()


@dataclass(frozen=True)
class HubDataset(Corpus):
    """A Hugging Face data set, by hub name or local folder, streamed.

    Its rows hold the two languages as columns, or below a column `translation`.
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
        """What the data set says of itself; its text, whatever it is stored as."""
        with self._guarded():
            splits = self._dataset().info.splits or {}
        return splits[self.split].num_bytes if self.split in splits else None

    def blocks(self, size: int) -> Iterator[Block]:
        return _blocks_of(self, self.fields(), size, [])

    def pairs_of(self, block: Block) -> Iterator[Pair]:
        # A data set's text may hold line breaks; here a sentence is a line.
        return ((_one_line(source), _one_line(target)) for source, target in block.parts[0])

    def fields(self) -> Iterator[Pair]:
        """Yield each row's two fields as they are."""
        for row in self._rows():
            row = row.get("translation", row)
            missing = [key for key in (self.source, self.target) if key not in row]
            if missing:
                raise UserError(
                    f"data set {self}: no column '{missing[0]}'; its columns are "
                    f"{', '.join(map(str, row))}: name them with data.source and data.target"
                )
            source, target = row[self.source], row[self.target]
            yield "" if source is None else str(source), "" if target is None else str(target)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # datasets raises dozens of kinds, network errors among them
            raise UnfinishedError(
                f"data set {self} cannot be read: {' '.join(str(error).split())}; "
                "check the name and the network, or give a local folder; the same command goes on"
            ) from None

    def _rows(self) -> Iterator[dict[str, Any]]:
        with self._guarded():
            rows = self._dataset()
            # Labels are numbers, -1 where there is none; what is wanted here is their names.
            classes = {key: feature for key, feature in (rows.features or {}).items()
                       if hasattr(feature, "int2str")}  # fmt: skip
            for row in rows:
                for key, feature in classes.items():
                    number = row[key]
                    row[key] = None if number is None or number < 0 else feature.int2str(number)
                yield row

    def _dataset(self) -> Any:
        """Open it, with `datasets`."""
        import datasets

        folder = Path(self.name)
        if (folder / "dataset_dict.json").exists():
            return datasets.load_from_disk(folder)[self.split]
        if (folder / "state.json").exists():
            return datasets.load_from_disk(folder)
        return datasets.load_dataset(self.name, self.subset, split=self.split, streaming=True)


def _one_line(text: str) -> str:
    return text.replace("\r\n", " ").replace("\n", " ")


def _blocks_of(
    corpus: Corpus, rows: Iterator[Any], size: int, streams: Sequence[IO[bytes]]
) -> Iterator[Block]:
    first = 1
    for part, work in _grouped(rows, size, streams):
        yield Block(corpus, first, (part,), work)
        first += len(part)


def _grouped(
    rows: Iterator[Row], size: int, streams: Sequence[IO[bytes]]
) -> Iterator[tuple[list[Row], int]]:
    """Yield `size` rows at a time, or BLOCK_BYTES of them, and how far the streams have come.

    Without streams: how long the rows are.
    """
    group: list[Row] = []
    num_bytes = place = 0
    for row in rows:
        group.append(row)
        num_bytes += len(row) if isinstance(row, bytes) else sum(map(len, row))
        if len(group) >= size or num_bytes >= BLOCK_BYTES:
            before, place = place, sum(map(_place, streams))
            yield group, place - before if streams else num_bytes
            group, num_bytes = [], 0
    if group:
        yield group, sum(map(_place, streams)) - place if streams else num_bytes


def _place(stream: IO[bytes]) -> int:
    """Return how many bytes of a file have been read, of a compressed one as it is."""
    raw = stream.fileobj if isinstance(stream, gzip.GzipFile) else stream
    return int(raw.tell()) if raw else 0


def open_labelled(config: CorpusConfig, key: str, text: str, label: str) -> Corpus:
    """Find a file of labelled texts, or a data set with the columns `text` and `label`."""
    if config.dataset and not config.path:
        split = config.split or key.rpartition(".")[2]
        return HubDataset(config.dataset, config.subset, split, text, label)
    if not config.path or config.dataset or config.source or config.target:
        raise UserError(f"{key}: give a file of `label<TAB>text` lines as its path, or a dataset")
    return LabelledFile(_existing(Path(config.path), key))


def open_corpus(config: CorpusConfig, source: str, target: str, key: str) -> Corpus:
    """Find a corpus's files; `key` names its place in the recipe for errors."""
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
            f"{key}: {prefix} is a file; give what the names of both languages' files begin with, "
            f"to which .{language} is added"
        )
    return zipped if zipped.is_file() and not plain.is_file() else _existing(plain, key)


def _existing(path: Path, key: str) -> Path:
    if path.is_dir():
        raise UserError(f"{key}: {path} is a folder; name a file, or the folder as `dataset`")
    if not path.is_file():
        raise UserError(f"{key}: file not found: {path}")
    return path
