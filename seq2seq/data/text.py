"""One long text for a language model: out of files or a data set, into ids that are mapped."""

from __future__ import annotations

import gzip
import logging
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seq2seq.config import Config, CorpusConfig
from seq2seq.data.corpus import HubDataset, open_bytes
from seq2seq.data.prepared import PreparedData, describe_inputs, find_or_make, fingerprint_of
from seq2seq.data.tokenizer import Alphabet, Tokenizer, train_vocabulary
from seq2seq.errors import UserError

BLOCK_BYTES = 1 << 22

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TextFiles:
    """Files, one after the other, each as it is or in .gz."""

    files: list[Path]

    def blocks(self) -> Iterator[bytes]:
        """Yield some megabytes at a time, whole lines if they are not longer than that."""
        for path in self.files:
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


@dataclass(frozen=True)
class TextRows:
    """A data set's rows, each a line."""

    rows: HubDataset

    @property
    def files(self) -> list[Path]:
        return self.rows.files

    def blocks(self) -> Iterator[bytes]:
        """Yield a row at a time."""
        return (row.encode() + b"\n" for row, _ in self.rows)


Text = TextFiles | TextRows


def open_text(config: CorpusConfig, column: str) -> Text:
    """Find a text's files: one, or all of a folder in the order of their names; or a data set."""
    if config.dataset:
        rows = HubDataset(config.dataset, config.subset, config.split or "train", column, column)
        return TextRows(rows)
    if not config.path or config.source or config.target:
        raise UserError("data.text: give a file or a folder as its path, or a dataset")
    path = Path(config.path)
    if not path.exists():
        raise UserError(f"data.text: file not found: {path}")
    files = [path] if path.is_file() else sorted(
        each for each in path.rglob("*") if each.is_file() and not each.name.startswith(".")
    )  # fmt: skip
    if not files:
        raise UserError(f"data.text: the folder {path} holds no file")
    return TextFiles(files)


def prepare_text(config: Config) -> PreparedData:
    """Make the prepared folder of a language model's text, or find the one made before."""
    assert config.data.text is not None  # checked with the recipe
    text = open_text(config.data.text, config.data.source or "text")
    models = [Path(path) for path in config.tokenizer.models]
    own = Tokenizer.from_files(models) if models else None
    fingerprint = fingerprint_of(config, text.files, own.checksum if own else None)
    return find_or_make(config, fingerprint, lambda folder: _write(config, text, own, folder))


def _write(
    config: Config, text: Text, own: Tokenizer | None, folder: Path
) -> tuple[Tokenizer, dict[str, Any]]:
    tokenizer = own or _make_tokenizer(config, text)
    dtype = np.min_scalar_type(tokenizer.target.size - 1)
    encode = _encoder(tokenizer)
    whole = folder / "whole.bin"
    with whole.open("wb") as sink:
        for block in text.blocks():
            sink.write(encode(block).astype(dtype).tobytes())
    size = whole.stat().st_size // dtype.itemsize
    splits: dict[str, Any] = {}
    if size:  # an empty file cannot be mapped
        ids = np.memmap(whole, dtype=dtype, mode="r")
        for split, (start, end) in _parts(config, size).items():
            (folder / f"{split}.bin").write_bytes(ids[start:end].tobytes())
            splits[split] = {"file": f"{split}.bin", "dtype": dtype.name, "tokens": end - start}
    whole.unlink()
    shortest = min((facts["tokens"] for facts in splits.values()), default=0)
    if shortest <= 1 or splits["train"]["tokens"] <= config.model.context:
        raise UserError(
            f"data.text: {size} tokens are too few to train with model.context="
            f"{config.model.context} and to hold out data.dev_share={config.data.dev_share}"
        )
    logger.info("%s", ", ".join(f"{name}: {facts['tokens']:,} tokens"
                                for name, facts in splits.items()))  # fmt: skip
    return tokenizer, {"inputs": describe_inputs(text.files), "splits": splits}


def _parts(config: Config, size: int) -> dict[str, tuple[int, int]]:
    """Cut a text: its end is the test set, before that comes the development set."""
    data = config.data
    # So that nine tenths of ten are nine.
    dev = int(size * (1 - data.dev_share - data.test_share) + 1e-6)
    test = int(size * (1 - data.test_share) + 1e-6)
    parts = {"train": (0, dev), "dev": (dev, test)}
    return parts | ({"test": (test, size)} if data.test_share else {})


def _make_tokenizer(config: Config, text: Text) -> Tokenizer:
    options = config.tokenizer
    if options.kind == "byte":
        vocabulary = Alphabet(None)
    elif options.kind == "char":
        characters: set[str] = set()
        for block in text.blocks():
            characters |= set(_decoded(block))
        vocabulary = Alphabet(sorted(characters))
    else:
        logger.info("training the tokenizer: bpe, %d pieces", options.vocab_size)
        return _train_pieces(config, text)
    return Tokenizer(vocabulary, vocabulary)


def _train_pieces(config: Config, text: Text) -> Tokenizer:
    """Train SentencePiece on the lines of the training part, as many as tokenizer.sample says."""
    share = 1 - config.data.dev_share - config.data.test_share
    total = sum(len(block) for block in text.blocks())

    def lines() -> Iterator[str]:
        left, number = int(total * share), 0
        for block in text.blocks():
            for line in _decoded(block)[: max(0, left)].split("\n"):
                number += 1
                if number > config.tokenizer.sample:
                    return
                yield line
            left -= len(block)
            if left <= 0:
                return

    vocabulary = train_vocabulary(lines(), config.tokenizer, [], all_spaces=True)
    return Tokenizer(vocabulary, vocabulary)


def _encoder(tokenizer: Tokenizer) -> Callable[[bytes], NDArray[np.int64]]:
    vocabulary = tokenizer.target
    if isinstance(vocabulary, Alphabet):
        # Bytes may be of any kind; characters are UTF-8.
        if vocabulary.characters is None:
            return vocabulary.encode_bytes
        return lambda block: vocabulary.encode_bytes(_decoded(block).encode())

    def encode(block: bytes) -> NDArray[np.int64]:
        rows = vocabulary.encode(_decoded(block).splitlines(keepends=True))
        return np.array([i for row in rows for i in row], dtype=np.int64)

    return encode


def _decoded(block: bytes) -> str:
    try:
        return block.decode("utf-8")
    except UnicodeDecodeError as error:
        around = block[max(0, error.start - 20) : error.start + 1]
        raise UserError(
            f"data.text: not UTF-8 (0x{block[error.start]:02x} after {around[:-1]!r}); convert it, "
            "for instance with iconv, or read it with tokenizer.kind=byte"
        ) from None


def _last_character(block: bytes) -> int:
    """Return where the last character of a block without line feeds begins, if it may go on."""
    start = len(block) - 1
    while start > 0 and len(block) - start < 4 and block[start] & 0xC0 == 0x80:
        start -= 1
    return start if block[start] & 0xC0 == 0xC0 and start else len(block)
