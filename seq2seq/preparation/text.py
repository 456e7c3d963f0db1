"""Prepare the text of a language model: tokenizer and memory-mapped token ids."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from seq2seq.config import Config
from seq2seq.data.lines import lines_of, open_bytes
from seq2seq.data.store import PreparedData
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Alphabet, SentencePieces, Vocabulary, train_vocabulary
from seq2seq.errors import UserError
from seq2seq.files import sha256_of
from seq2seq.preparation.corpora import HubDataset, existing_file
from seq2seq.preparation.folder import WORK, finish_stage, load_or_prepare

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
    if not path.is_dir():
        return [existing_file(path, key)]
    visible = (p for p in path.rglob("*") if "/." not in f"/{p.relative_to(path)}")
    return sorted(p for p in visible if p.is_file())


def prepare_text(config: Config) -> PreparedData:
    """Return the prepared data of a language model's recipe, reused if already prepared."""
    text, dataset = config.text.text, None
    assert text is not None  # checked with the recipe
    if bool(text.path) == bool(text.dataset) or text.source or text.target:
        raise UserError("data.text: give either path (a file or a folder) or dataset")
    if text.dataset:
        columns = (config.text.source or "text",)
        dataset = HubDataset(text.dataset, text.subset, text.split or "train", columns)
    files = dataset.files if dataset else text_files(text.path or "", "data.text")
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
            return _write_splits(config, files, pretrained, folder)

        def write_rows(draft: Path) -> None:
            with (draft / "rows.txt").open("wb") as sink:
                sink.writelines(f"{text}\n".encode() for [text] in dataset.rows())

        finish_stage(folder / WORK / "text", write_rows)
        lines = folder / WORK / "text" / "rows.txt"  # a row of the dataset per line
        data = _write_splits(config, [lines], pretrained, folder)
        data.manifest["datasets"] = {} if files else {str(dataset): sha256_of(lines)}
        return data

    return load_or_prepare(config, files, pretrained, write)


def encode_text(tokenizer: Tokenizer, data: str, folder: Path) -> dict[str, Any]:
    """Encode the text of `--data` as the split `test` of a folder; return its manifest entry."""
    facts = _write_ids(text_files(data, "--data"), tokenizer.target, folder / "test.bin")
    if facts["tokens"] < 2:
        raise UserError(f"--data: {data} is too short: fewer than 2 tokens")
    return facts


def _write_splits(
    config: Config, files: Sequence[Path], pretrained: Tokenizer | None, folder: Path
) -> PreparedData:
    """Encode a text and write its first part as train.bin, and then dev.bin and test.bin."""
    if not any(read_texts(files)):
        raise UserError("data.text is empty")
    tokenizer = pretrained or _make_tokenizer(config, files)
    whole = folder / "whole.bin"
    facts = _write_ids(files, tokenizer.target, whole)
    ids = np.memmap(whole, facts["dtype"], mode="r")
    ends = split_ends(len(ids), config.text.dev_share, config.text.test_share)
    parts = dict(zip(("train", "dev", "test"), np.split(ids, ends), strict=True))
    if not config.text.test_share:
        del parts["test"]
    splits, pieces = {}, tokenizer.target.token_bytes
    for split, part in parts.items():
        if len(part) < 2:
            raise UserError(
                f"data.text: only {len(part)} of {len(ids):,} tokens for {split}: raise "
                f"data.{split}_share or use a longer text"
            )
        part.tofile(folder / f"{split}.bin")
        if split != "train":  # for other programs
            with (folder / f"{split}.txt").open("wb") as sink:
                sink.writelines(pieces[i] for i in part)
        splits[split] = facts | {"files": [f"{split}.bin"], "tokens": len(part)}
    whole.unlink()
    logger.info("%s", ", ".join(f"{split}: {len(x):,} tokens" for split, x in parts.items()))
    return PreparedData(folder, tokenizer, {"splits": splits, "datasets": {}})


def split_ends(size: int, dev_share: float, test_share: float) -> list[int]:
    """Return where the training and the development part of a text end."""
    # The small term corrects rounding errors: 10 * 0.9 must give 9.
    return [int(size * share + 1e-6) for share in (1 - dev_share - test_share, 1 - test_share)]


def _write_ids(files: Sequence[Path], vocabulary: Vocabulary, path: Path) -> dict[str, Any]:
    """Write the token ids of a text to a file; return its manifest entry."""
    dtype = np.min_scalar_type(vocabulary.size - 1)
    with path.open("wb") as sink:
        for text in read_texts(files):
            lines = vocabulary.encode(text.splitlines(keepends=True))
            np.fromiter(chain.from_iterable(lines), dtype).tofile(sink)
    tokens = path.stat().st_size // dtype.itemsize
    return {"files": [path.name], "dtype": dtype.name, "tokens": tokens}


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
    for text in read_texts(files):
        for line in text[:left].split("\n"):
            for start in range(0, len(line), LINE_CHARACTERS):
                yield line[start : start + LINE_CHARACTERS]
        left = max(0, left - len(text))
