"""Prepare the text of a language model: tokenizer and memory-mapped token ids."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seq2seq.config import Config
from seq2seq.data.lines import lines_of, open_bytes
from seq2seq.data.store import PreparedData
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Alphabet, SentencePieces
from seq2seq.errors import UserError
from seq2seq.files import sha256_of
from seq2seq.preparation.corpora import HubDataset
from seq2seq.preparation.folder import WORK, finish_stage, load_or_prepare
from seq2seq.preparation.train_vocabulary import train_vocabulary

READ_SIZE = 1 << 22
"""Number of characters read at once."""
LINE_CHARACTERS = 2_000
"""Maximum line length for training a tokenizer. Longer lines are split."""

logger = logging.getLogger(__name__)


def read_texts(files: Sequence[Path]) -> Iterator[str]:
    """Yield plain or gzipped files in blocks of some megabytes, without byte order marks.

    Blocks end at a line feed unless lines are too long. Raises UserError for invalid UTF-8.
    """
    for path in files:
        try:
            with open_bytes(path) as stream:
                text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="\n")
                while block := text.read(READ_SIZE):
                    yield block + text.readline(READ_SIZE)
        except UnicodeDecodeError:
            for _ in lines_of(path):  # raises an error with the line number
                pass
            raise


def text_files(name: str, key: str) -> list[Path]:
    """Return a file, or all files of a folder in alphabetical order. key: for errors."""
    path = Path(name)
    if not path.exists():
        raise UserError(f"{key}: file not found: {path}")
    if path.is_file():
        return [path]
    visible = (p for p in path.rglob("*") if "/." not in f"/{p.relative_to(path)}")
    files = sorted(p for p in visible if p.is_file())
    if not files:
        raise UserError(f"{key}: the folder {path} has no files")
    return files


def prepare_text(config: Config, split: str | None = None) -> PreparedData:
    """Return the prepared data of a language model's recipe, reused if already prepared.

    split: see `PreparedData.load`.
    """
    text, dataset = config.text.text, None
    assert text is not None  # checked with the recipe
    if text.dataset and not text.path:
        columns = (config.text.source or "text",)
        dataset = HubDataset(text.dataset, text.subset, text.split or "train", columns)
        files = dataset.files
    elif text.path and not (text.dataset or text.source or text.target):
        files = text_files(text.path, "data.text")
    else:
        raise UserError("data.text: give either path (a file or a folder) or dataset")
    models = [Path(path) for path in config.tokenizer.models]
    pretrained = Tokenizer.from_files(models) if models else None
    vocabulary = pretrained.target if pretrained else None
    if isinstance(vocabulary, SentencePieces) and not vocabulary.keeps_spaces():
        raise UserError(
            f"{models[0]} does not preserve all spaces and line feeds: leave out tokenizer.models "
            "or use the tokenizer of a language model"
        )

    def write(folder: Path) -> PreparedData:
        if not dataset:
            return _write(config, files, pretrained, folder)
        rows = folder / WORK / "text" / "rows.txt"
        finish_stage(rows.parent, lambda draft: _write_rows(dataset, draft / rows.name))
        data = _write(config, [rows], pretrained, folder)
        data.manifest["datasets"] = {} if files else {str(dataset): sha256_of(rows)}
        return data

    return load_or_prepare(config, files, pretrained, write, split)


def encode_text(tokenizer: Tokenizer, data: str, folder: Path) -> dict[str, Any]:
    """Encode the text of `--data` as the split `test` of a folder; return its manifest entry."""
    facts = _write_ids(text_files(data, "--data"), tokenizer, folder / "test.bin")
    if facts["tokens"] < 2:
        raise UserError(f"--data: {data} is too short: fewer than 2 tokens")
    return facts


def _write_rows(dataset: HubDataset, path: Path) -> None:
    """Write a dataset with one column to a file, one row per line."""
    with path.open("wb") as sink:
        sink.writelines(f"{text}\n".encode() for [text] in dataset.rows())


def _write_ids(files: Sequence[Path], tokenizer: Tokenizer, path: Path) -> dict[str, Any]:
    """Write the token ids of a text to a file; return its manifest entry."""
    dtype = np.min_scalar_type(max(1, tokenizer.target.size) - 1)
    with path.open("wb") as sink:
        for block in encoded(files, tokenizer):
            block.astype(dtype).tofile(sink)
    tokens = path.stat().st_size // dtype.itemsize
    return {"files": [path.name], "dtype": dtype.name, "tokens": tokens}


def _write(
    config: Config, files: Sequence[Path], pretrained: Tokenizer | None, folder: Path
) -> PreparedData:
    if not any(read_texts(files)):
        raise UserError("data.text is empty")
    tokenizer = pretrained or _make_tokenizer(config, files)
    whole = folder / "whole.bin"
    facts = _write_ids(files, tokenizer, whole)
    sizes = split_sizes(facts["tokens"], config.text.dev_share, config.text.test_share)
    splits, start, pieces = {}, 0, tokenizer.target.token_bytes
    for split, count in sizes.items():
        if count < 2:
            raise UserError(
                f"data.text: only {count} of {facts['tokens']:,} tokens for {split}: raise "
                f"data.{split}_share or use a longer text"
            )
        ids = np.memmap(whole, facts["dtype"], mode="r")[start : start + count]
        ids.tofile(folder / f"{split}.bin")
        if split != "train":  # for other programs
            with (folder / f"{split}.txt").open("wb") as sink:
                sink.writelines(pieces[i] for i in ids)
        splits[split] = facts | {"files": [f"{split}.bin"], "tokens": count}
        start += count
    whole.unlink()
    logger.info("%s", ", ".join(f"{split}: {count:,} tokens" for split, count in sizes.items()))
    return PreparedData(folder, tokenizer, {"splits": splits, "datasets": {}})


def split_sizes(size: int, dev_share: float, test_share: float) -> dict[str, int]:
    """Return the size of each split of a text: train, dev and test, in this order."""
    # The small term corrects rounding errors: 10 * 0.9 must give 9.
    train = int(size * (1 - dev_share - test_share) + 1e-6)
    before_test = int(size * (1 - test_share) + 1e-6)
    sizes = {"train": train, "dev": before_test - train}
    return sizes | ({"test": size - before_test} if test_share else {})


def _make_tokenizer(config: Config, files: Sequence[Path]) -> Tokenizer:
    options = config.tokenizer
    if options.kind == "bpe":
        lines = islice(_training_lines(config, files), options.sample)
        pieces = train_vocabulary(lines, options, [], all_spaces=True)
        return Tokenizer(pieces, pieces)
    characters = chain.from_iterable(map(set, read_texts(files)))
    alphabet = Alphabet(None if options.kind == "byte" else sorted(set(characters)))
    return Tokenizer(alphabet, alphabet)


def _training_lines(config: Config, files: Sequence[Path]) -> Iterator[str]:
    """Yield the lines of the training part. Long lines are split."""
    share = 1 - config.text.dev_share - config.text.test_share
    left = int(share * sum(map(len, read_texts(files))))
    for part in read_texts(files):
        for line in part[:left].split("\n"):
            for start in range(0, len(line), LINE_CHARACTERS):
                yield line[start : start + LINE_CHARACTERS]
        left = max(0, left - len(part))


def encoded(files: Sequence[Path], tokenizer: Tokenizer) -> Iterator[NDArray[np.int64]]:
    """Yield the token ids of a text in blocks."""
    vocabulary = tokenizer.target
    for part in read_texts(files):
        if isinstance(vocabulary, Alphabet):
            yield vocabulary.encode_text(part)
        else:
            rows = vocabulary.encode(part.splitlines(keepends=True))
            yield np.array([i for row in rows for i in row], dtype=np.int64)
