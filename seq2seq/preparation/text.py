"""Prepare the text of a language model: from files or a dataset to memory-mapped ids."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seq2seq.config import Config, CorpusConfig
from seq2seq.data.context_windows import require_context
from seq2seq.data.lines import complete, open_bytes
from seq2seq.data.prepared import PreparedData
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Alphabet
from seq2seq.errors import UserError
from seq2seq.preparation.corpora import HubText
from seq2seq.preparation.folder import WORK, describe_files, find_or_make
from seq2seq.preparation.ingest import IngestedBlock, ingest, sha256_of_pairs
from seq2seq.preparation.sources import Source
from seq2seq.preparation.train_vocabulary import train_vocabulary
from seq2seq.preparation.workers import num_processes

READ_BYTES = 1 << 22
LINE_CHARACTERS = 2_000
"""Longer lines are split into pieces of this length to train a tokenizer."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TextFiles:
    """Plain or gzipped files, concatenated."""

    files: list[Path]

    def blocks(self) -> Iterator[bytes]:
        """Yield blocks of some megabytes that end at a line feed, if lines are not longer."""
        return (block for path in self.files for block in _blocks(path))

    def texts(self) -> Iterator[str]:
        """Yield the text of the blocks; raises UserError for a file that is not UTF-8.

        A byte order mark is removed.
        """
        for path in self.files:
            done = 0
            for block in _blocks(path):
                try:
                    text = block.decode("utf-8")
                    yield text if done else text.removeprefix("\ufeff")
                except UnicodeDecodeError as error:
                    raise UserError(
                        f"{path}, byte {done + error.start + 1}: not UTF-8 "
                        f"(0x{block[error.start]:02x}); convert the file, for instance with iconv, "
                        "or read it with tokenizer.kind=byte"
                    ) from None
                done += len(block)


@dataclass(frozen=True)
class TextRows:
    """The rows of a dataset, each followed by a line feed, in ingested blocks."""

    rows: Sequence[IngestedBlock]

    def blocks(self) -> Iterator[bytes]:
        """Yield a block at a time."""
        return (text.encode() for text in self.texts())

    def texts(self) -> Iterator[str]:
        """Yield a block at a time."""
        return ("".join(block.pairs()[0]) for block in self.rows)


Text = TextFiles | TextRows


def open_text(config: CorpusConfig, column: str, key: str = "data.text") -> TextFiles | HubText:
    """Open a text: a file, all files of a folder in the order of their names, or a dataset.

    key: its key in the recipe, for errors.
    """
    if config.dataset and not config.path:
        return HubText(config.dataset, config.subset, config.split or "train", column, column)
    if not config.path or config.dataset or config.source or config.target:
        raise UserError(f"{key}: give a file or a folder as its path, or a dataset")
    path = Path(config.path)
    if not path.exists():
        raise UserError(f"{key}: file not found: {path}")
    files = [path] if path.is_file() else [
        each for each in sorted(path.rglob("*"))
        if each.is_file() and not any(p.startswith(".") for p in each.relative_to(path).parts)
    ]  # fmt: skip
    if not files:
        raise UserError(f"{key}: the folder {path} has no files")
    return TextFiles(files)


def prepare_text(config: Config, split: str | None = None) -> PreparedData:
    """Prepare the text of a language model, or return what was prepared before.

    split: see `PreparedData.load`.
    """
    data = config.text
    assert data.text is not None  # checked with the recipe
    source = open_text(data.text, data.source or "text")
    models = [Path(path) for path in config.tokenizer.models]
    own = Tokenizer.from_files(models) if models else None
    if own and not own.target.keeps_spaces():
        raise UserError(
            f"{models[0]} does not preserve all spaces and line feeds, as language models need: "
            "leave tokenizer.models out, or name one of another language model's run"
        )

    def write(folder: Path) -> tuple[Tokenizer, dict[str, Any]]:
        if isinstance(source, TextFiles):
            return _write(config, source, describe_files(source.files), own, folder)
        (work := folder / WORK).mkdir(exist_ok=True)
        corpora = [Source("train", None, source)]
        blocks = ingest(corpora, None, ("", ""), work, num_processes())
        inputs = describe_files(source.files) or [
            {"dataset": str(source), "sha256": sha256_of_pairs(blocks)}
        ]
        return _write(config, TextRows(blocks), inputs, own, folder)

    return find_or_make(config, source.files, own.checksum if own else None, write, split)


def encode_text(tokenizer: Tokenizer, data: str, folder: Path) -> dict[str, Any]:
    """Encode the text of `--data` to a folder, as the split `test`; return its manifest entry."""
    text = open_text(CorpusConfig(path=data), "text", key="--data")
    assert isinstance(text, TextFiles)
    ids = np.concatenate([np.zeros(0, dtype=np.int64), *encoded(text, tokenizer)])
    if len(ids) < 2:
        raise UserError(f"--data: {data} has {len(ids)} token(s), too few to predict one")
    dtype = np.min_scalar_type(max(1, tokenizer.target.size) - 1)
    ids.astype(dtype).tofile(folder / "test.bin")
    return {"files": ["test.bin"], "dtype": dtype.name, "tokens": len(ids)}


def _write(
    config: Config, text: Text, inputs: Sequence[object], own: Tokenizer | None, folder: Path
) -> tuple[Tokenizer, dict[str, Any]]:
    if not any(text.blocks()):
        raise UserError("data.text is empty")
    tokenizer = own or _make_tokenizer(config, text)
    dtype = np.min_scalar_type(max(1, tokenizer.target.size) - 1)
    whole = folder / "whole.bin"
    with whole.open("wb") as sink:
        for ids in encoded(text, tokenizer):
            sink.write(ids.astype(dtype).tobytes())
    size = whole.stat().st_size // dtype.itemsize
    splits: dict[str, Any] = {}
    with whole.open("rb") as source:
        for split, count in parts(size, config.text.dev_share, config.text.test_share).items():
            with (folder / f"{split}.bin").open("wb") as sink:
                _copy(source, sink, count * dtype.itemsize)
            splits[split] = {"files": [f"{split}.bin"], "dtype": dtype.name, "tokens": count}
    whole.unlink()
    for split in splits.keys() - {"train"}:
        _write_text(folder, split, tokenizer, dtype)
    require_context(splits["train"]["tokens"], config.model.context)
    for split, facts in splits.items():
        if facts["tokens"] < 2:
            raise UserError(
                f"data.text: {facts['tokens']} of {size:,} tokens are for {split}, too few to "
                f"predict one: raise data.{split}_share or use a longer text"
            )
    logger.info("%s", ", ".join(f"{name}: {facts['tokens']:,} tokens"
                                for name, facts in splits.items()))  # fmt: skip
    return tokenizer, {"inputs": inputs, "splits": splits}


def _write_text(folder: Path, split: str, tokenizer: Tokenizer, dtype: np.dtype[Any]) -> None:
    """Write the text of a split, for other programs."""
    pieces, size = tokenizer.target.token_bytes(), READ_BYTES * dtype.itemsize
    with (
        (folder / f"{split}.bin").open("rb") as source,
        (folder / f"{split}.txt").open("wb") as sink,
    ):
        while block := source.read(size):
            sink.write(b"".join(pieces[i] for i in np.frombuffer(block, dtype)))


def _copy(source: Any, sink: Any, size: int) -> None:
    while size:
        block = source.read(min(size, READ_BYTES))
        sink.write(block)
        size -= len(block)


def parts(size: int, dev_share: float, test_share: float) -> dict[str, int]:
    """Return the size of each split of a text, in the order train, dev, test."""
    # int(10 * 0.9) must be 9 despite rounding.
    train = int(size * (1 - dev_share - test_share) + 1e-6)
    before_test = int(size * (1 - test_share) + 1e-6)
    sizes = {"train": train, "dev": before_test - train}
    return sizes | ({"test": size - before_test} if test_share else {})


def _make_tokenizer(config: Config, text: Text) -> Tokenizer:
    options = config.tokenizer
    if options.kind == "byte":
        vocabulary = Alphabet(None)
    elif options.kind == "char":
        characters: set[str] = set()
        for part in text.texts():
            characters |= set(part)
        vocabulary = Alphabet(sorted(characters))
    else:
        logger.info("training the tokenizer: bpe, %d pieces", options.vocab_size)
        pieces = train_vocabulary(_training_lines(config, text), options, [], all_spaces=True)
        return Tokenizer(pieces, pieces)
    return Tokenizer(vocabulary, vocabulary)


def _training_lines(config: Config, text: Text) -> Iterator[str]:
    """Yield the first tokenizer.sample lines of the training part, with long ones split."""
    share = 1 - config.text.dev_share - config.text.test_share
    left = int(share * sum(len(part) for part in text.texts()))
    number = 0
    for part in text.texts():
        for line in part[:left].split("\n"):
            for start in range(0, len(line), LINE_CHARACTERS):
                number += 1
                if number > config.tokenizer.sample:
                    return
                yield line[start : start + LINE_CHARACTERS]
        left = max(0, left - len(part))


def encoded(text: Text, tokenizer: Tokenizer) -> Iterator[NDArray[np.int64]]:
    """Yield the ids of a text in blocks."""
    vocabulary = tokenizer.target
    if not isinstance(vocabulary, Alphabet):
        for part in text.texts():
            rows = vocabulary.encode(part.splitlines(keepends=True))
            yield np.array([i for row in rows for i in row], dtype=np.int64)
    elif vocabulary.characters is None:  # bytes need not be text
        yield from map(vocabulary.encode_bytes, text.blocks())
    else:
        yield from map(vocabulary.encode_text, text.texts())


def _blocks(path: Path) -> Iterator[bytes]:
    rest = b""
    with open_bytes(path) as stream:
        blocks = takewhile(len, (stream.read(READ_BYTES) for _ in count()))
        for block in complete(blocks, str(path)):
            block = rest + block
            cut = block.rfind(b"\n") + 1 or _last_character(block)
            rest = block[cut:]
            yield block[:cut]
    if rest:
        yield rest


def _last_character(block: bytes) -> int:
    """Return the start of the last character of a block if it is incomplete, else its end."""
    start = len(block) - 1
    while start > 0 and len(block) - start < 4 and block[start] & 0xC0 == 0x80:
        start -= 1
    return start if block[start] & 0xC0 == 0xC0 and start else len(block)
