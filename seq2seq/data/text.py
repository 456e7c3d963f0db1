"""One long text for a language model: from files or a data set to ids in a memory-mapped file."""

from __future__ import annotations

import gzip
import logging
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seq2seq.config import Config, CorpusConfig
from seq2seq.data.context_windows import require_context
from seq2seq.data.corpus import HubDataset, open_bytes
from seq2seq.data.prepared import PreparedData, describe_inputs, find_or_make, fingerprint_of
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Alphabet, train_vocabulary
from seq2seq.errors import UserError

BLOCK_BYTES = 1 << 22
LINE_CHARACTERS = 2_000
"""Longer lines are cut into pieces of this length to train a tokenizer."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TextFiles:
    """Files, one after the other, each as it is or in .gz."""

    files: list[Path]

    def blocks(self) -> Iterator[bytes]:
        """Yield some megabytes at a time, whole lines if they are not longer than that."""
        return (block for path in self.files for block in _blocks(path))

    def texts(self) -> Iterator[str]:
        """Yield the blocks' text; raises UserError where a file is not UTF-8.

        A byte order mark, with which Windows programs begin a file, is left out.
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
    """A data set's rows, each with a line's end behind it."""

    rows: HubDataset

    @property
    def files(self) -> list[Path]:
        return self.rows.files

    def blocks(self) -> Iterator[bytes]:
        """Yield a row at a time."""
        return (text.encode() for text in self.texts())

    def texts(self) -> Iterator[str]:
        """Yield a row at a time."""
        return (f"{row}\n" for row, _ in self.rows.fields())


Text = TextFiles | TextRows


def open_text(config: CorpusConfig, column: str) -> Text:
    """Find a text's files: one, or all of a folder in the order of their names; or a data set."""
    if config.dataset and not config.path:
        rows = HubDataset(config.dataset, config.subset, config.split or "train", column, column)
        return TextRows(rows)
    if not config.path or config.dataset or config.source or config.target:
        raise UserError("data.text: give a file or a folder as its path, or a dataset")
    path = Path(config.path)
    if not path.exists():
        raise UserError(f"data.text: file not found: {path}")
    files = [path] if path.is_file() else [
        each for each in sorted(path.rglob("*"))
        if each.is_file() and not any(p.startswith(".") for p in each.relative_to(path).parts)
    ]  # fmt: skip
    if not files:
        raise UserError(f"data.text: the folder {path} holds no file")
    return TextFiles(files)


def prepare_text(config: Config) -> PreparedData:
    """Make the prepared folder of a language model's text, or find the one made before."""
    assert config.data.text is not None  # checked with the recipe
    text = open_text(config.data.text, config.data.source or "text")
    models = [Path(path) for path in config.tokenizer.models]
    own = Tokenizer.from_files(models) if models else None
    if own and not own.target.keeps_spaces():
        raise UserError(
            f"{models[0]} does not keep all spaces and line ends, as a language model needs: leave "
            "tokenizer.models out, or name one of another language model's run"
        )
    fingerprint = fingerprint_of(config, text.files, own.checksum if own else None)
    return find_or_make(config, fingerprint, lambda folder: _write(config, text, own, folder))


def _write(
    config: Config, text: Text, own: Tokenizer | None, folder: Path
) -> tuple[Tokenizer, dict[str, Any]]:
    if not any(text.blocks()):
        raise UserError("data.text is empty")
    tokenizer = own or _make_tokenizer(config, text)
    dtype = np.min_scalar_type(max(1, tokenizer.target.size) - 1)
    whole = folder / "whole.bin"
    with whole.open("wb") as sink:
        for ids in _encoded(text, tokenizer):
            sink.write(ids.astype(dtype).tobytes())
    size = whole.stat().st_size // dtype.itemsize
    splits: dict[str, Any] = {}
    with whole.open("rb") as source:
        for split, count in parts(size, config.data.dev_share, config.data.test_share).items():
            with (folder / f"{split}.bin").open("wb") as sink:
                _copy(source, sink, count * dtype.itemsize)
            splits[split] = {"files": [f"{split}.bin"], "dtype": dtype.name, "tokens": count}
    whole.unlink()
    require_context(splits["train"]["tokens"], config.model.context)
    for split, facts in splits.items():
        if facts["tokens"] < 2:
            raise UserError(
                f"data.text: of {size:,} tokens {facts['tokens']} are for {split}, too few to "
                f"predict one: raise data.{split}_share or take a longer text"
            )
    logger.info("%s", ", ".join(f"{name}: {facts['tokens']:,} tokens"
                                for name, facts in splits.items()))  # fmt: skip
    return tokenizer, {"inputs": describe_inputs(text.files), "splits": splits}


def _copy(source: Any, sink: Any, size: int) -> None:
    while size:
        block = source.read(min(size, BLOCK_BYTES))
        sink.write(block)
        size -= len(block)


def parts(size: int, dev_share: float, test_share: float) -> dict[str, int]:
    """Return the size of each split of a text: its end is for testing, before that comes dev."""
    # So that nine tenths of ten are nine.
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
    """Yield the first tokenizer.sample lines of the training part, long ones in pieces."""
    share = 1 - config.data.dev_share - config.data.test_share
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


def _encoded(text: Text, tokenizer: Tokenizer) -> Iterator[NDArray[np.int64]]:
    """Yield the text's ids, some at a time."""
    vocabulary = tokenizer.target
    if not isinstance(vocabulary, Alphabet):
        for part in text.texts():
            rows = vocabulary.encode(part.splitlines(keepends=True))
            yield np.array([i for row in rows for i in row], dtype=np.int64)
    elif vocabulary.characters is None:  # of any kind, text or not
        yield from map(vocabulary.encode_bytes, text.blocks())
    else:
        yield from map(vocabulary.encode_text, text.texts())


def _blocks(path: Path) -> Iterator[bytes]:
    rest = b""
    with open_bytes(path) as stream:
        try:
            while block := stream.read(BLOCK_BYTES):
                block = rest + block
                cut = block.rfind(b"\n") + 1 or _last_character(block)
                rest = block[cut:]
                yield block[:cut]
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UserError(f"{path} is not a whole gzip file: {error}") from None
    if rest:
        yield rest


def _last_character(block: bytes) -> int:
    """Return where a block's last character begins if that may be incomplete, else the end."""
    start = len(block) - 1
    while start > 0 and len(block) - start < 4 and block[start] & 0xC0 == 0x80:
        start -= 1
    return start if block[start] & 0xC0 == 0xC0 and start else len(block)
