"""The data that a model is evaluated on: a split of its recipe's data, or files like them."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

from seq2seq.config import Config, CorpusConfig, PairsConfig, TextConfig, with_paths
from seq2seq.data.prepared import PreparedData, checksum_of
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Labels
from seq2seq.errors import SharedError, UserError, is_first_process
from seq2seq.preparation.corpora import TextPair, open_corpus
from seq2seq.preparation.folder import find_prepared
from seq2seq.preparation.prepare import encode_pairs, prepare
from seq2seq.preparation.shards import tagged
from seq2seq.preparation.text import encode_text
from seq2seq.training.records import corpus_files, current_path, last_start

logger = logging.getLogger(__name__)


def split_of_run(config: Config, run: Path, split: str, tokenizer: Tokenizer) -> PreparedData:
    """Return the data that a run was trained with, even if their corpora are gone.

    Raises SharedError if neither they nor their corpora are there, or either has changed.
    """
    if not config.data.corpora:
        raise SharedError(
            f"{run} does not say with which data it was trained: name a test set with --data"
        )
    trained_with = last_start(run).get("data", {})  # {} of a model directory
    config = with_paths(config, partial(current_path, run=run))
    gone = next((file for file in corpus_files(run) if not file.exists()), None)
    if gone is None:
        data = prepare(config, split)
    elif folder := find_prepared(Path(config.data.store), trained_with["fingerprint"]):
        data = PreparedData.load(folder, split)
    else:
        raise SharedError(
            f"{gone} is gone, and so are the data in {config.data.store} that were prepared from "
            f"it: restore either of them to evaluate {run}"
        )
    splits = trained_with.get("splits", {})
    same_split = split not in splits or data.checksum(split) == checksum_of(trained_with, split)
    if data.tokenizer.checksum != tokenizer.checksum or not same_split:
        raise SharedError(
            f"the {split} set in {data.folder} is not the one that {run} was trained with: the "
            "corpora have changed since; restore them, or train a new run"
        )
    return data


def given_files(config: Config, tokenizer: Tokenizer, data: str, folder: Path) -> PreparedData:
    """Encode files in the form of the recipe's `data.test` to a folder, as the split `test`.

    data: PREFIX of two files or a .tsv; `label<TAB>text` lines for a classifier; a file or folder
    of text for a language model.
    """
    if isinstance(config.data, TextConfig):
        facts = encode_text(tokenizer, data, folder)
        return PreparedData(folder, tokenizer, {"splits": {"test": facts}})
    tag = tag_of(config)
    pairs = [(tagged(tag, source), target) for source, target in given_pairs(config.pairs, data)]
    known = tokenizer.target.names if isinstance(tokenizer.target, Labels) else None
    if known and (unknown := {label for _, label in pairs}.difference(known)):
        raise UserError(f"--data: {data} has the label {min(unknown)!r}, which the model has not")
    encode_pairs(folder / "test.arrow", pairs, tokenizer, with_text=True)
    facts = {"files": ["test.arrow"], "pairs": len(pairs)}
    return PreparedData(folder, tokenizer, {"splits": {"test": facts}})


def given_pairs(config: PairsConfig, data: str) -> list[TextPair]:
    """Read the sources and targets, or texts and labels, of such files, without tags."""
    pairs = list(open_corpus(config, CorpusConfig(path=data), "--data").read())
    if not pairs:
        raise UserError(f"--data: {data} is empty")
    return pairs


def tag_of(config: Config) -> str | None:
    """Return the tag of the recipe's test set, for other sentences; warn if it is not known."""
    data = config.pairs
    tag = data.test.tag if data.test else None
    if tag is None and any(each.tag for each in data.train) and is_first_process():
        logger.warning("the model was trained with tags before source sentences: these have none")
    return tag
