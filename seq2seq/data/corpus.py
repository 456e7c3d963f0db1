"""Pairs of sentences out of files and data sets, one at a time, never a whole corpus in memory."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from seq2seq.config import CorpusConfig
from seq2seq.errors import UserError

Pair = tuple[str, str]


def read_lines(
    stream: Iterable[bytes], name: str, *, errors: str = "strict", first: int = 1
) -> Iterator[str]:
    r"""Decode UTF-8 lines, split at \n alone, without their line ends (\n or \r\n).

    errors: `strict` raises UserError with file and line number, `replace` puts U+FFFD. first: the
    number of the first line.
    """
    for number, line in enumerate(_whole_stream(stream, name), start=first):
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
class LineFiles:
    """Two files, aligned line by line."""

    source: Path
    target: Path

    def __str__(self) -> str:
        return f"{self.source} + {self.target}"

    @property
    def files(self) -> list[Path]:
        return [self.source, self.target]

    def __iter__(self) -> Iterator[Pair]:
        with open_bytes(self.source) as source, open_bytes(self.target) as target:
            sources = read_lines(source, str(self.source))
            targets = read_lines(target, str(self.target))
            pairs = 0
            for text in sources:
                other = next(targets, None)
                if other is None:
                    raise self._unequal(pairs + 1 + sum(1 for _ in sources), pairs)
                yield text, other
                pairs += 1
            surplus = sum(1 for _ in targets)
            if surplus:
                raise self._unequal(pairs, pairs + surplus)

    def _unequal(self, num_source: int, num_target: int) -> UserError:
        return UserError(
            f"{self.source} has {num_source} lines but {self.target} has {num_target}: "
            "line n of the one must translate line n of the other"
        )


@dataclass(frozen=True)
class TabFile:
    """One file of `source<TAB>target` lines; further columns are ignored."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def files(self) -> list[Path]:
        return [self.path]

    def __iter__(self) -> Iterator[Pair]:
        with open_bytes(self.path) as stream:
            for number, line in enumerate(read_lines(stream, str(self.path)), start=1):
                columns = line.split("\t")
                if len(columns) < 2:
                    raise UserError(
                        f"{self.path}, line {number}: no tab between source and target: {line!r}"
                    )
                yield columns[0], columns[1]


@dataclass(frozen=True)
class HubDataset:
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

    def __iter__(self) -> Iterator[Pair]:
        # A data set's text may hold line breaks; here a sentence is a line.
        return ((_one_line(source), _one_line(target)) for source, target in self.fields())

    def fields(self) -> Iterator[Pair]:
        """Yield each row's two fields as they are."""
        for row in self._guarded_rows():
            row = row.get("translation", row)
            missing = [key for key in (self.source, self.target) if key not in row]
            if missing:
                raise UserError(
                    f"data set {self}: no column '{missing[0]}'; its columns are "
                    f"{', '.join(map(str, row))}: name them with data.source and data.target"
                )
            source, target = row[self.source], row[self.target]
            yield "" if source is None else str(source), "" if target is None else str(target)

    def _guarded_rows(self) -> Iterator[dict[str, Any]]:
        try:
            yield from self._rows()
        except Exception as error:  # datasets raises dozens of kinds, network errors among them
            raise UserError(
                f"data set {self} cannot be read: {' '.join(str(error).split())}; "
                "check the name, or give a local folder"
            ) from None

    def _rows(self) -> Iterator[dict[str, Any]]:
        import datasets

        folder = Path(self.name)
        rows: Any
        if (folder / "dataset_dict.json").exists():
            rows = datasets.load_from_disk(folder)[self.split]
        elif (folder / "state.json").exists():
            rows = datasets.load_from_disk(folder)
        else:
            rows = datasets.load_dataset(self.name, self.subset, split=self.split, streaming=True)
        # Labels are kept as numbers, -1 where there is none; what is wanted here is their names.
        classes = {key: feature for key, feature in (rows.features or {}).items()
                   if isinstance(feature, datasets.ClassLabel)}  # fmt: skip
        for row in rows:
            for key, feature in classes.items():
                number = row[key]
                row[key] = None if number is None or number < 0 else feature.int2str(number)
            yield row


def _one_line(text: str) -> str:
    return text.replace("\r\n", " ").replace("\n", " ")


class LabelledFile(TabFile):
    """One file of `label<TAB>text` lines, read as pairs of text and label."""

    def __iter__(self) -> Iterator[Pair]:
        with open_bytes(self.path) as stream:
            for number, line in enumerate(read_lines(stream, str(self.path)), start=1):
                label, tab, text = line.partition("\t")
                if not tab or not label.strip():
                    raise UserError(
                        f"{self.path}, line {number}: no label before a tab: {line[:80]!r}"
                    )
                yield text, label.strip()


Corpus = LineFiles | TabFile | HubDataset


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
