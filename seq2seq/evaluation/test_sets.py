"""The data that a model is evaluated on: a split of its recipe's data, or files like them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np

from seq2seq.config import Config, CorpusConfig
from seq2seq.data.prepared import PreparedData, checksum_of
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Labels
from seq2seq.errors import SharedError, UserError, is_first_process
from seq2seq.preparation.corpora import open_corpus, open_labelled
from seq2seq.preparation.encode import encode_with_text, tagged
from seq2seq.preparation.folder import find_prepared
from seq2seq.preparation.prepare import prepare
from seq2seq.preparation.text import TextFiles, encoded, open_text
from seq2seq.training.provenance import corpus_files, last_start

logger = logging.getLogger(__name__)


def split_of_run(config: Config, run: Path, split: str, tokenizer: Tokenizer) -> PreparedData:
    """Return the data that a run was trained with, even if their corpora are gone.

    Raises UserError if neither they nor their corpora are there, or either has changed.
    """
    if not config.data.train and config.data.text is None:
        raise SharedError(
            f"{run} does not say with which data it was trained: name a test set with --data"
        )
    data = _prepared(config, run, split)
    if data.tokenizer.checksum != tokenizer.checksum:
        raise UserError(
            f"the prepared data in {data.folder} have a different tokenizer than {run}: the "
            "corpora have changed since it was trained"
        )
    try:
        before = checksum_of(last_start(run)["data"], split)
    except (KeyError, TypeError):  # a model directory, or a run without that split
        return data
    if data.checksum(split) != before:
        raise SharedError(
            f"the {split} set in {data.folder} is not the one that {run} was trained with: the "
            "corpora have changed since; restore them, or train a new run"
        )
    return data


def _prepared(config: Config, run: Path, split: str) -> PreparedData:
    try:
        trained_with = last_start(run)["data"]
        files = corpus_files(trained_with)
        fingerprint = trained_with["fingerprint"]
    except (KeyError, TypeError):  # a model directory
        return prepare(config, split)
    gone = next((file for file in files if not file.exists()), None)
    if gone is None:
        return prepare(config, split)
    if folder := find_prepared(Path(config.data.store), fingerprint):
        return PreparedData.load(folder, split)
    raise SharedError(
        f"{gone} is gone, and so are the data in {config.data.store} that were prepared from it: "
        f"restore either of them to evaluate {run}"
    )


def given_files(config: Config, tokenizer: Tokenizer, data: str, folder: Path) -> PreparedData:
    """Encode files in the form of the recipe's `data.test` to a folder, as the split `test`.

    data: PREFIX of two files or a .tsv; `label<TAB>text` lines for a classifier; a file or folder
    of text for a language model.
    """
    if config.task == "language_model":
        facts = _encode_text(tokenizer, data, folder)
    else:
        facts = _encode_pairs(config, tokenizer, data, folder)
    return PreparedData(folder, tokenizer, {"splits": {"test": facts}})


def given_pairs(config: Config, data: str) -> tuple[list[str], list[str]]:
    """Read the sources and targets, or texts and labels, of such files, without tags."""
    corpus = CorpusConfig(path=data)
    if config.task == "classification":
        pairs = list(open_labelled(corpus, "--data", "text", "label"))
    else:
        pairs = list(open_corpus(corpus, config.data.source, config.data.target, "--data"))
    if not pairs:
        raise UserError(f"--data: {data} is empty")
    return [source for source, _ in pairs], [target for _, target in pairs]


def tag_of(config: Config) -> str | None:
    """Return the tag of the recipe's test set, for other sentences; warn if it is not known."""
    tag = config.data.test.tag if config.data.test else None
    if tag is None and any(each.tag for each in config.data.train) and is_first_process():
        logger.warning("the model was trained with tags before source sentences: these have none")
    return tag


def _encode_pairs(config: Config, tokenizer: Tokenizer, data: str, folder: Path) -> dict[str, Any]:
    sources, targets = given_pairs(config, data)
    if isinstance(tokenizer.target, Labels):
        if unknown := sorted({*targets} - {*tokenizer.target.names}):
            raise UserError(f"--data: {data} has the label {unknown[0]!r}, which the model has not")
    else:
        tag = tag_of(config)
        sources = [tagged(tag, source) for source in sources]
    encode_with_text(folder / "test.arrow", sources, targets, tokenizer)
    return {"files": ["test.arrow"], "pairs": len(sources)}


def _encode_text(tokenizer: Tokenizer, data: str, folder: Path) -> dict[str, Any]:
    text = open_text(CorpusConfig(path=data), "text", key="--data")
    assert isinstance(text, TextFiles)
    ids = np.concatenate([np.zeros(0, dtype=np.int64), *encoded(text, tokenizer)])
    if len(ids) < 2:
        raise UserError(f"--data: {data} has {len(ids)} token(s), too few to predict one")
    dtype = np.min_scalar_type(max(1, tokenizer.target.size) - 1)
    ids.astype(dtype).tofile(folder / "test.bin")
    return {"files": ["test.bin"], "dtype": dtype.name, "tokens": len(ids)}
