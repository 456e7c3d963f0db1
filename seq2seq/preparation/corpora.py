"""The corpora of a recipe: sentence pairs from files and datasets."""

from __future__ import annotations

import gzip
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import IO, Any

from seq2seq.config import CorpusConfig, PairsConfig
from seq2seq.data.lines import open_bytes, read_lines
from seq2seq.errors import UnfinishedError, UserError, shown
from seq2seq.preparation.cleaning import require_languages

TextPair = tuple[str, str]

BATCH_PAIRS = 50_000
"""Number of pairs that are read at once."""
BATCH_CHARACTERS = 1 << 24
"""Maximum size of a batch: long texts, too, must fit into memory."""


HEADER_WORDS = {
    "source", "target", "src", "tgt", "trg", "text", "label", "sentence", "sentence1", "sentence2",
    "input", "output", "id", "score", "translation", "reference", "english", "german", "french",
    "spanish", "italian",
}  # fmt: skip
"""What a column is called, in lower case, besides the codes of its language."""

logger = logging.getLogger(__name__)


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
    def batches(self) -> Iterator[tuple[list[TextPair], int]]:
        """Read BATCH_PAIRS at a time, with the part of `num_bytes` that was read for them.

        Raises UserError for an invalid pair.
        """

    def __iter__(self) -> Iterator[TextPair]:
        return (pair for batch, _ in self.batches() for pair in batch)


class FileCorpus(Corpus):
    """Files that are read line by line, all at the same time."""

    def __init__(self, *files: Path) -> None:
        self._files = list(files)

    def __str__(self) -> str:
        return " + ".join(map(str, self._files))

    @property
    def files(self) -> list[Path]:
        return self._files

    def batches(self) -> Iterator[tuple[list[TextPair], int]]:
        with ExitStack() as stack:
            streams = [stack.enter_context(open_bytes(path)) for path in self._files]
            lines = zip_longest(*map(read_lines, streams, map(str, self._files)))
            yield from _batched(self.pairs(lines), streams)

    def first_columns(self) -> list[str]:
        """Return the first source and target, in the order in which the files have them."""
        lines: list[str] = []
        for path in self._files:
            with open_bytes(path) as stream:
                lines += islice(read_lines(stream, str(path)), 1)
        return lines if len(lines) != 1 else lines[0].split("\t")[:2]

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

    @property
    def num_bytes(self) -> int | None:
        with self._explained():
            splits = self.open().info.splits or {}
        return splits[self.split].num_bytes if self.split in splits else None

    def batches(self) -> Iterator[tuple[list[TextPair], int]]:
        # A sentence is a line here, but fields of a dataset may contain line breaks.
        return _batched((_one_line(source), _one_line(target)) for source, target in self.rows())

    def rows(self) -> Iterator[list[str]]:
        """Yield the columns of each row; a missing value is an empty text."""
        with self._explained():
            rows = self.open()
            # Labels are numbers, -1 for none; their names are needed here.
            classes = {key: feature for key, feature in (rows.features or {}).items()
                       if hasattr(feature, "int2str")}  # fmt: skip
            for row in rows:
                for key, feature in classes.items():
                    number = row[key]
                    row[key] = None if number is None or number < 0 else feature.int2str(number)
                row = row.get("translation", row)
                for key in self.columns:
                    if key not in row:
                        raise UserError(
                            f"dataset {self}: no column {key!r}; its columns are "
                            f"{', '.join(map(str, row))}: name them with data.source and "
                            "data.target"
                        )
                yield ["" if row[key] is None else str(row[key]) for key in self.columns]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
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


def _batched(
    pairs: Iterator[TextPair], streams: Sequence[IO[bytes]] = ()
) -> Iterator[tuple[list[TextPair], int]]:
    """Yield BATCH_PAIRS at a time, or BATCH_CHARACTERS, with the bytes read from the streams.

    Without streams: the number of characters.
    """
    batch: list[TextPair] = []
    characters = position = 0
    for pair in chain(pairs, [None]):
        if pair:
            batch.append(pair)
            characters += len(pair[0]) + len(pair[1])
        if batch and (not pair or len(batch) == BATCH_PAIRS or characters >= BATCH_CHARACTERS):
            before, position = position, sum(map(_position, streams))
            yield batch, position - before if streams else characters
            batch, characters = [], 0


def _position(stream: IO[bytes]) -> int:
    """Return the number of bytes that were read from a file, before decompression."""
    raw = stream.fileobj if isinstance(stream, gzip.GzipFile) else stream
    return int(raw.tell()) if raw else 0


@dataclass(frozen=True)
class Source:
    """A corpus and the split that it belongs to."""

    split: str
    tag: str | None
    corpus: Corpus


def open_sources(
    data: PairsConfig, open_corpus: Callable[[CorpusConfig, str], Corpus]
) -> list[Source]:
    """Open the corpora of a recipe, training corpora first.

    open_corpus: called with each and its key. Raises UserError for a missing or unsuitable file.
    """
    named: list[tuple[str, CorpusConfig]] = [("train", corpus) for corpus in data.train]
    named += [("dev", data.dev)] if data.dev else []
    named += [("test", data.test)] if data.test else []

    if data.clean.languages:
        require_languages(data.source, data.target)
    return [Source(split, each.tag, open_corpus(each, f"data.{split}")) for split, each in named]


def tags_of(sources: Iterable[Source]) -> list[str]:
    """Return the distinct tags of the corpora."""
    return sorted({source.tag for source in sources if source.tag})


def warn_of_header(corpus: Corpus, languages: Collection[str]) -> None:
    """Warn if the first line of a file seems to name its columns.

    languages: codes of the languages, such as `en`.
    """
    names = HEADER_WORDS | {language.lower() for language in languages}
    columns = corpus.first_columns() if isinstance(corpus, FileCorpus) else []
    known = [column.strip(' \ufeff"#').lower() in names - {""} for column in columns]
    if known == [True, True]:
        logger.warning(
            "%s: the first line, %s, looks like a header; it is read as an example like the "
            "others: remove it if it is one", corpus, shown("\t".join(columns)),
        )  # fmt: skip
