"""Prepare the corpora of a recipe: tokenizer and memory-mapped token ids.

Stages: read the corpora once into shards of text, select pairs, train the tokenizer on a sample,
encode all pairs. After an interruption, finished shards and a finished tokenizer are used again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np

from seq2seq.config import Config, LabelledConfig, TextConfig
from seq2seq.data.store import PreparedData, write_store
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Labels, SentencePieces
from seq2seq.errors import UserError
from seq2seq.files import write_text
from seq2seq.preparation.cleaning import CODES, KEPT, RULES, require_languages, require_pairs
from seq2seq.preparation.corpora import Corpus, TextPair, open_corpus
from seq2seq.preparation.folder import WORK, finish_stage, load_or_prepare
from seq2seq.preparation.shards import Selection, Shard, read_shards, sha256_of_pairs, write_shards
from seq2seq.preparation.text import prepare_text
from seq2seq.preparation.train_vocabulary import train_vocabulary
from seq2seq.terminal import ProgressBar
from seq2seq.text.protect import SYMBOLS, compile_patterns, protect_pair

SPLITS = "train", "dev", "test"
BATCH_SIZE = 2_000
"""Number of pairs encoded at once."""
MAX_LABELS = 1000
"""Maximum number of labels of a classifier. More are considered a mistake."""

logger = logging.getLogger(__name__)


def prepare(config: Config, split: str | None = None) -> PreparedData:
    """Return the prepared data of a recipe. Data already prepared from the same inputs are reused.

    split: see `PreparedData.load`.
    """
    if isinstance(config.data, TextConfig):
        return prepare_text(config, split)
    data = config.pairs
    if data.clean.languages:
        require_languages(data.source, data.target)
    named = [("train", corpus) for corpus in data.train]
    named += [(name, corpus) for name, corpus in (("dev", data.dev), ("test", data.test)) if corpus]
    named += [("exclude", corpus) for corpus in data.exclude]
    corpora = [open_corpus(data, corpus, f"data.{name}") for name, corpus in named]
    tags = sorted({corpus.tag for corpus in corpora if corpus.tag})
    pretrained = _pretrained(config, tags)
    pattern = compile_patterns(data.protect, "data.protect")

    def write(folder: Path) -> PreparedData:
        return _Preparation(config, corpora, tags, pretrained, pattern, folder).run()

    files = [path for corpus in corpora for path in corpus.files]
    return load_or_prepare(config, files, pretrained, write, split)


def _pretrained(config: Config, tags: Sequence[str]) -> Tokenizer | None:
    """Load the recipe's pre-trained tokenizer, if any. tags: symbols that it must contain."""
    models = [Path(path) for path in config.tokenizer.models]
    if not models:
        return None
    tokenizer = Tokenizer.from_files(models)
    if not isinstance(tokenizer.source, SentencePieces):
        raise UserError(f"{models[0]} is a language model's alphabet: give a SentencePiece model")
    for model, vocabulary in zip(models, tokenizer.translation_vocabularies, strict=False):
        if config.tokenizer.bpe_dropout and not vocabulary.has_merges():
            raise UserError(f"{model} is not a BPE model: set tokenizer.bpe_dropout=0")
    for tag in tags:
        if not tokenizer.source.knows(tag):
            raise UserError(
                f"data.train: tag={tag!r} is not a symbol of {models[0]}: train that model with "
                "the tag in user_defined_symbols"
            )
    if config.pairs.protect and not tokenizer.has_symbols:
        raise UserError(
            f"data.protect needs reserved symbols, which {models[0]} lacks: leave data.protect "
            "out (`translate --protect` works without them)"
        )
    return tokenizer


@dataclass(frozen=True)
class _Preparation:
    """Preparation of one folder."""

    config: Config
    corpora: Sequence[Corpus]
    """Training corpora first."""
    tags: Sequence[str]
    pretrained: Tokenizer | None
    pattern: re.Pattern[str] | None
    """Pattern of the spans that the model sees as symbols."""
    folder: Path

    def run(self) -> PreparedData:
        """Run all stages. Skips stages that an interrupted preparation has finished."""
        data, work = self.config.pairs, self.folder / WORK
        finish_stage(work / "corpora", lambda folder: write_shards(folder, self.corpora, data))
        shards: dict[str, list[Shard]] = {name: [] for name in (*SPLITS, "exclude")}
        all_shards = read_shards(work / "corpora", self.corpora)
        for shard in all_shards:
            shards[self.corpora[shard.corpus].split].append(shard)
        excluded = shards["exclude"]
        labels = find_labels(shards) if isinstance(data, LabelledConfig) else None
        selection = Selection(shards["train"])
        if data.clean.duplicates:
            selection.drop_duplicates()
        if data.clean.overlap:
            excluded = excluded + shards["dev"] + shards["test"]
        if excluded:
            selection.drop_overlap(excluded)
        held_out = selection.hold_out(data)
        require_pairs(len(selection.kept), selection.dropped())
        finish_stage(
            work / "tokenizer", lambda folder: self._make_tokenizer(selection, labels).save(folder)
        )
        tokenizer = Tokenizer.load(work / "tokenizer")
        splits = {}
        for split in ("dev", "test"):
            if split in held_out:
                pairs = list(selection.pairs(held_out[split]))
            else:
                pairs = [pair for shard in shards[split] for pair in shard.pairs()]
            if not pairs:
                continue
            file = f"{split}.arrow"
            encode_pairs(self.folder / file, pairs, tokenizer, self.pattern, with_text=True)
            self._write_text(split, pairs)
            splits[split] = {"files": [file], "pairs": len(pairs)}
        splits["train"] = self._encode(selection, tokenizer)
        checksums = {
            corpus.name: sha256_of_pairs(x for x in all_shards if x.corpus == number)
            for number, corpus in enumerate(self.corpora)
            if not corpus.files
        }
        logger.info(drop_table(splits))
        return PreparedData(self.folder, tokenizer, {"splits": splits, "datasets": checksums})

    def _make_tokenizer(self, selection: Selection, labels: Labels | None) -> Tokenizer:
        pretrained, options = self.pretrained, self.config.tokenizer

        def trained(*sides: int) -> SentencePieces:
            pairs = (protect_pair(*pair, self.pattern) for pair in selection.sample(options.sample))
            symbols = [*(self.tags if 0 in sides else []), *(SYMBOLS if self.pattern else [])]
            return train_vocabulary(
                (pair[side] for pair in pairs for side in sides), options, symbols
            )

        if labels:
            return Tokenizer(pretrained.source if pretrained else trained(0), labels)
        if pretrained:
            return pretrained
        if not options.shared:
            return Tokenizer(trained(0), trained(1))
        vocabulary = trained(0, 1)
        return Tokenizer(vocabulary, vocabulary)

    def _encode(self, selection: Selection, tokenizer: Tokenizer) -> dict[str, Any]:
        """Encode the kept training pairs. Returns the manifest entry of the split `train`."""
        max_len, files = self.config.pairs.clean.max_len, list[Path]()
        pairs_per_corpus = dict.fromkeys((shard.corpus for shard in selection.shards), 0)
        with ProgressBar(len(selection.verdicts)) as progress_bar:
            for shard, verdicts in selection.by_shard():
                indices = np.flatnonzero(verdicts == KEPT)
                pairs = list(shard.pairs(indices))
                files.append(self.folder / f"train-{len(files):05}.arrow")
                too_long = encode_pairs(files[-1], pairs, tokenizer, self.pattern, max_len=max_len)
                verdicts[indices[too_long]] = CODES["max_len"]
                pairs_per_corpus[shard.corpus] += len(pairs) - len(too_long)
                progress_bar.advance(len(verdicts))
                progress_bar.show(f"  encoding: {sum(pairs_per_corpus.values()):,} pairs")
        num_pairs, dropped = sum(pairs_per_corpus.values()), selection.dropped()
        require_pairs(num_pairs, dropped)
        facts: dict[str, Any] = {
            "files": [file.name for file in files],
            "read": len(selection.verdicts),
            "dropped": dropped,
            "pairs": num_pairs,
            "pairs_per_corpus": list(pairs_per_corpus.values()),
        }
        if isinstance(tokenizer.target, Labels):
            facts["labels"] = tokenizer.target.names
        return facts

    def _write_text(self, split: str, pairs: Sequence[TextPair]) -> None:
        """Write a development or test set as text files, for `--data` and other programs."""
        data = self.config.pairs
        if isinstance(data, LabelledConfig):
            rows = (f"{label}\t{text}\n" for text, label in pairs)
            write_text(self.folder / f"{split}.tsv", "".join(rows))
            return
        names = [data.source, data.target] if data.source != data.target else ["source", "target"]
        for name, texts in zip(names, zip(*pairs, strict=True), strict=True):
            path = self.folder / f"{split}.{name.replace('/', '_')}"
            write_text(path, "".join(f"{text}\n" for text in texts))


def find_labels(shards: Mapping[str, Sequence[Shard]]) -> Labels:
    """Return the labels of the training set. Raises UserError for unsuitable labels.

    shards: texts and labels by split.
    """
    known: set[str] = set()
    for shard in shards["train"]:
        known |= shard.targets()
        if len(known) > MAX_LABELS:
            raise UserError(
                f"data.train: over {MAX_LABELS} different labels, such as "
                f"{max(known, key=len)[:80]!r}: lines must be LABEL<TAB>TEXT, in this order"
            )
    listed = shorten(", ".join(sorted(known)), 200)
    if len(known) < 2:
        raise UserError(
            f"data.train: all texts have the label {listed}: at least two labels are needed"
        )
    for split in SPLITS:
        labels = set[str]().union(*(shard.targets() for shard in shards[split]))
        if "" in labels:
            raise UserError(f"data.{split}: a text has no label")
        if unknown := sorted(labels - known):
            raise UserError(
                f"data.{split}: the label {unknown[0]!r} is not in the training data ({listed})"
            )
    return Labels(known)


def encode_pairs(
    file: Path,
    pairs: Sequence[TextPair],
    tokenizer: Tokenizer,
    pattern: re.Pattern[str] | None,
    *,
    max_len: int | None = None,
    with_text: bool = False,
) -> list[int]:
    """Write pairs to a store. Pairs with more than `max_len` tokens on either side are dropped.

    Returns the indices of dropped pairs. pattern: spans that are replaced by symbols. with_text:
    also store the text (dev and test sets).
    """
    too_long: list[int] = []

    def batches() -> Iterator[Sequence[Sequence[Any]]]:
        for start in range(0, len(pairs), BATCH_SIZE):
            batch = pairs[start : start + BATCH_SIZE]
            sources, targets = zip(*batch, strict=True)
            masked = zip(*(protect_pair(*pair, pattern) for pair in batch), strict=True)
            vocabularies = tokenizer.source, tokenizer.target
            ids = [x.encode(texts) for x, texts in zip(vocabularies, masked, strict=True)]
            longest = (max(map(len, sides)) for sides in zip(*ids, strict=True))
            fits = [max_len is None or length <= max_len for length in longest]
            too_long.extend(start + i for i, fit in enumerate(fits) if not fit)
            columns = (*ids, sources, targets) if with_text else ids
            yield [list(compress(column, fits)) for column in columns]

    write_store(file, batches(), with_text=with_text)
    return too_long


def drop_table(splits: dict[str, Any]) -> str:
    """Return a table of dropped training pairs by rule and of pairs by split."""
    train = splits["train"]
    rows = [("read", train["read"], "")]
    rows += [(f"- {rule}", count, RULES[rule]) for rule, count in train["dropped"].items()]
    rows += [(name, splits[name]["pairs"], "") for name in SPLITS if name in splits]
    if labels := train.get("labels"):
        rows.append(("labels", len(labels), shorten(", ".join(labels), 80)))
    return "\n".join(f"  {name:12} {count:>12,}  {note}".rstrip() for name, count, note in rows)
