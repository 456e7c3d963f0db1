"""Data to evaluate a model on: a split of the recipe's data, or other files."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path

from seq2seq.config import Config, CorpusConfig, PairsConfig, TextConfig, with_paths
from seq2seq.data.prepared import PreparedData
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Labels
from seq2seq.errors import UserError
from seq2seq.preparation.corpora import TextPair, open_corpus
from seq2seq.preparation.folder import find_prepared
from seq2seq.preparation.prepare import encode_pairs, prepare
from seq2seq.preparation.shards import tagged
from seq2seq.preparation.text import encode_text
from seq2seq.text.protect import compile_patterns
from seq2seq.training.records import current_path, last_start

logger = logging.getLogger(__name__)


def split_of_run(config: Config, run: Path, split: str, tokenizer: Tokenizer) -> PreparedData:
    """Return the prepared data that a run was trained with. The corpora may be gone.

    If the prepared data are gone, they are prepared again. Raises UserError if they have changed.
    """
    if not config.data.corpora:
        raise UserError(f"{run} has no record of its training data: name a test set with --data")
    trained_with = last_start(run).get("data", {})  # {} of a model directory
    config = with_paths(config, partial(current_path, run=run))
    folder = find_prepared(Path(config.data.store), trained_with.get("fingerprint", ""))
    data = PreparedData.load(folder, split) if folder else prepare(config, split)
    recorded = replace(data, manifest=trained_with)
    splits = trained_with.get("splits", {})
    same_split = split not in splits or data.checksum(split) == recorded.checksum(split)
    if data.tokenizer.checksum != tokenizer.checksum or not same_split:
        raise UserError(
            f"the {split} set in {data.folder} is not the one that {run} was trained with: the "
            "corpora have changed; restore them, or train a new run"
        )
    return data


def encode_files(config: Config, tokenizer: Tokenizer, data: str, folder: Path) -> PreparedData:
    """Encode files to a folder as the split `test`.

    data: as `data.test` in a recipe: PREFIX of two files or a .tsv for translation, a file of
    `label<TAB>text` lines for a classifier, a file or folder of text for a language model.
    """
    if isinstance(config.data, TextConfig):
        facts = encode_text(tokenizer, data, folder)
        return PreparedData(folder, tokenizer, {"splits": {"test": facts}})
    tag = tag_of(config)
    pairs = [(tagged(tag, source), target) for source, target in read_pairs(config.pairs, data)]
    known = tokenizer.target.names if isinstance(tokenizer.target, Labels) else None
    if known and (unknown := {label for _, label in pairs}.difference(known)):
        raise UserError(f"--data: {data} has the label {min(unknown)!r}, unknown to the model")
    pattern = compile_patterns(config.pairs.protect, "data.protect")
    encode_pairs(folder / "test.arrow", pairs, tokenizer, pattern, with_text=True)
    facts = {"files": ["test.arrow"], "pairs": len(pairs)}
    return PreparedData(folder, tokenizer, {"splits": {"test": facts}})


def read_pairs(config: PairsConfig, data: str) -> list[TextPair]:
    """Read pairs of source and target, or text and label, without tags."""
    pairs = list(open_corpus(config, CorpusConfig(path=data), "--data").read())
    if not pairs:
        raise UserError(f"--data: {data} is empty")
    return pairs


def tag_of(config: Config, split: str = "test") -> str | None:
    """Return the tag of the recipe's `dev` or `test` set. Warn if only training data have tags."""
    data = config.pairs
    corpus, size = {"dev": (data.dev, data.dev_size), "test": (data.test, data.test_size)}[split]
    if not corpus and size:
        corpus = data.train[0]
    tag = corpus.tag if corpus else None
    if tag is None and any(corpus.tag for corpus in data.train):
        logger.warning("the model was trained with tagged source sentences: these have no tag")
    return tag
