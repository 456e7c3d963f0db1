"""Prepare the text of a language model: from files or a dataset to memory-mapped ids."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seq2seq.config import Config, CorpusConfig
from seq2seq.data.lines import lines_of, named_gzip_errors, open_bytes
from seq2seq.data.prepared import PreparedData, require_context
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Alphabet
from seq2seq.errors import UserError
from seq2seq.files import sha256_of
from seq2seq.preparation.corpora import HubDataset
from seq2seq.preparation.folder import WORK, Made, find_or_make, finish_stage
from seq2seq.preparation.train_vocabulary import train_vocabulary

READ_SIZE = 1 << 22
"""Characters that are read at once."""
LINE_CHARACTERS = 2_000
"""Longer lines are split into pieces of this length to train a tokenizer."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TextFiles:
    """Plain or gzipped files, concatenated."""

    files: list[Path]

    def texts(self) -> Iterator[str]:
        """Yield blocks of some megabytes that end at a line feed, if lines are not longer.

        Without byte order marks. Raises UserError for a file that is not UTF-8.
        """
        for path in self.files:
            try:
                with named_gzip_errors(str(path)), open_bytes(path) as stream:
                    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="\n")
                    while block := text.read(READ_SIZE):
                        yield block + text.readline(READ_SIZE)
            except UnicodeDecodeError:
                for _ in lines_of(path):  # raises an error with the line
                    pass
                raise


def open_text(config: CorpusConfig, column: str, key: str = "data.text") -> TextFiles | HubDataset:
    """Open a text: a file, all files of a folder in the order of their names, or a dataset.

    key: its key in the recipe, for errors.
    """
    if config.dataset and not config.path:
        return HubDataset(config.dataset, config.subset, config.split or "train", (column,))
    if not config.path or config.dataset or config.source or config.target:
        raise UserError(f"{key}: give a file or a folder as its path, or a dataset")
    path = Path(config.path)
    if not path.exists():
        raise UserError(f"{key}: file not found: {path}")
    if path.is_file():
        return TextFiles([path])
    visible = (each for each in path.rglob("*") if "/." not in f"/{each.relative_to(path)}")
    files = sorted(each for each in visible if each.is_file())
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

    def write(folder: Path) -> Made:
        if isinstance(source, TextFiles):
            return _write(config, source, own, folder)
        rows = folder / WORK / "text" / "rows.txt"
        finish_stage(rows.parent, lambda draft: _write_rows(source, draft / rows.name))
        made = _write(config, TextFiles([rows]), own, folder)
        return made if source.files else made._replace(datasets={str(source): sha256_of(rows)})

    return find_or_make(config, source.files, own, write, split)


def encode_text(tokenizer: Tokenizer, data: str, folder: Path) -> dict[str, Any]:
    """Encode the text of `--data` to a folder, as the split `test`; return its manifest entry."""
    text = open_text(CorpusConfig(path=data), "text", key="--data")
    assert isinstance(text, TextFiles)
    facts = _write_ids(text, tokenizer, folder / "test.bin")
    if facts["tokens"] < 2:
        raise UserError(f"--data: {data} has {facts['tokens']} token(s), too few to predict one")
    return facts


def _write_rows(dataset: HubDataset, path: Path) -> None:
    """Write each row of a dataset with one column as a line."""
    with path.open("wb") as sink:
        sink.writelines(f"{text}\n".encode() for [text] in dataset.rows())


def _write_ids(text: TextFiles, tokenizer: Tokenizer, path: Path) -> dict[str, Any]:
    """Write the ids of a text; return the manifest entry of the file."""
    dtype = np.min_scalar_type(max(1, tokenizer.target.size) - 1)
    with path.open("wb") as sink:
        for block in encoded(text, tokenizer):
            block.astype(dtype).tofile(sink)
    tokens = path.stat().st_size // dtype.itemsize
    return {"files": [path.name], "dtype": dtype.name, "tokens": tokens}


def _write(config: Config, text: TextFiles, own: Tokenizer | None, folder: Path) -> Made:
    if not any(text.texts()):
        raise UserError("data.text is empty")
    tokenizer = own or _make_tokenizer(config, text)
    whole = folder / "whole.bin"
    facts = _write_ids(text, tokenizer, whole)
    sizes = parts(facts["tokens"], config.text.dev_share, config.text.test_share)
    require_context(sizes["train"], config.model.context)
    start, pieces = 0, tokenizer.target.token_bytes()
    for split, count in sizes.items():
        if count < 2:
            raise UserError(
                f"data.text: {count} of {facts['tokens']:,} tokens are for {split}, too few to "
                f"predict one: raise data.{split}_share or use a longer text"
            )
        ids = np.memmap(whole, facts["dtype"], mode="r")[start : start + count]
        ids.tofile(folder / f"{split}.bin")
        if split != "train":  # for other programs
            with (folder / f"{split}.txt").open("wb") as sink:
                sink.writelines(pieces[i] for i in ids)
        start += count
    whole.unlink()
    logger.info("%s", ", ".join(f"{split}: {count:,} tokens" for split, count in sizes.items()))
    splits = {
        split: facts | {"files": [f"{split}.bin"], "tokens": count}
        for split, count in sizes.items()
    }
    return Made(tokenizer, splits, {})


def parts(size: int, dev_share: float, test_share: float) -> dict[str, int]:
    """Return the size of each split of a text, in the order train, dev, test."""
    # int(10 * 0.9) must be 9 despite rounding.
    train = int(size * (1 - dev_share - test_share) + 1e-6)
    before_test = int(size * (1 - test_share) + 1e-6)
    sizes = {"train": train, "dev": before_test - train}
    return sizes | ({"test": size - before_test} if test_share else {})


def _make_tokenizer(config: Config, text: TextFiles) -> Tokenizer:
    options = config.tokenizer
    if options.kind == "bpe":
        logger.info("training the tokenizer: bpe, %d pieces", options.vocab_size)
        pieces = train_vocabulary(_training_lines(config, text), options, [], all_spaces=True)
        return Tokenizer(pieces, pieces)
    characters = chain.from_iterable(map(set, text.texts()))
    alphabet = Alphabet(None if options.kind == "byte" else sorted(set(characters)))
    return Tokenizer(alphabet, alphabet)


def _training_lines(config: Config, text: TextFiles) -> Iterator[str]:
    """Yield the first tokenizer.sample lines of the training part, with long ones split."""

    def lines() -> Iterator[str]:
        share = 1 - config.text.dev_share - config.text.test_share
        left = int(share * sum(map(len, text.texts())))
        for part in text.texts():
            yield from part[:left].split("\n")
            left = max(0, left - len(part))

    pieces = (
        line[start : start + LINE_CHARACTERS]
        for line in lines()
        for start in range(0, len(line), LINE_CHARACTERS)
    )
    return islice(pieces, config.tokenizer.sample)


def encoded(text: TextFiles, tokenizer: Tokenizer) -> Iterator[NDArray[np.int64]]:
    """Yield the ids of a text in blocks."""
    vocabulary = tokenizer.target
    if not isinstance(vocabulary, Alphabet):
        for part in text.texts():
            rows = vocabulary.encode(part.splitlines(keepends=True))
            yield np.array([i for row in rows for i in row], dtype=np.int64)
    elif vocabulary.characters is None:
        yield from (vocabulary.encode_bytes(part.encode()) for part in text.texts())
    else:
        yield from map(vocabulary.encode_text, text.texts())
