"""Prepare a recipe's corpora: tokenizer and token ids, in a folder that training memory-maps.

In stages: the corpora are read once, into shards of text; what is kept is selected; the tokenizer
is trained on a sample; the rest is encoded. Several processes share reading and encoding. After an
interruption the stages that were finished are not repeated.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np

from seq2seq.config import Config, PairsConfig
from seq2seq.data.prepared import PreparedData
from seq2seq.data.sentencepiece_file import read_model_type
from seq2seq.data.store import Store
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Alphabet, Labels, SentencePieces
from seq2seq.errors import UserError
from seq2seq.files import write_text
from seq2seq.preparation.cleaning import CODES, KEPT, RULES, require_left
from seq2seq.preparation.corpora import Source, open_sources, tags_of, warn_of_header
from seq2seq.preparation.encode import encode_pairs, encode_shard, tagged
from seq2seq.preparation.folder import WORK, Made, find_or_make, finish_stage
from seq2seq.preparation.formats import SentencePairs
from seq2seq.preparation.selection import Selection
from seq2seq.preparation.shards import Shard, read_shards, sha256_of_pairs, write_shards
from seq2seq.preparation.train_vocabulary import train_vocabulary
from seq2seq.preparation.workers import parallel_map
from seq2seq.progress_bar import ProgressBar

Texts = tuple[list[str], list[str]]
"""Source and target sentences."""

DROPPED_FILE = "dropped.json"
"""Examples of the pairs that each rule has dropped."""
NUM_EXAMPLES = 5
"""Number of these for each rule."""
EXAMPLE_CHARACTERS = 500

logger = logging.getLogger(__name__)


def prepare_pairs(config: Config, pairs: SentencePairs, split: str | None = None) -> PreparedData:
    """Return the recipe's prepared data, which are made unless the same inputs were prepared.

    pairs: what they are. split: see `PreparedData.load`.
    """
    sources = open_sources(config.pairs, pairs.open)
    own = _pretrained(config, tags_of(sources))

    def write(folder: Path) -> Made:
        return _Preparation(config, pairs, sources, own, folder).run()

    files = [path for source in sources for path in source.corpus.files]
    return find_or_make(config, files, own, write, split)


def _pretrained(config: Config, tags: Sequence[str]) -> Tokenizer | None:
    """Read `tokenizer.models`, if the recipe names any; tags: symbols that they must have."""
    models = [Path(path) for path in config.tokenizer.models]
    if not models:
        return None
    tokenizer = Tokenizer.from_files(models)
    if isinstance(tokenizer.source, Alphabet):
        raise UserError(f"{models[0]} is the alphabet of a language model: name SentencePiece")
    for model in models if config.tokenizer.bpe_dropout else []:
        if (kind := read_model_type(model.read_bytes())) != "bpe":
            raise UserError(
                f"tokenizer.bpe_dropout is for BPE, and {model} is a {kind} model, which has no "
                "merges to drop; set tokenizer.bpe_dropout=0"
            )
    for tag in tags:
        if not tokenizer.source.knows(tag):
            raise UserError(
                f"data.train: tag={tag!r} is not a symbol of {models[0]}: train that model with it "
                "as user_defined_symbols"
            )
    return tokenizer


@dataclass(frozen=True)
class _Preparation:
    """Fills the folder of prepared data."""

    config: Config
    pairs: SentencePairs
    sources: Sequence[Source]
    own: Tokenizer | None
    """The pre-trained tokenizer."""
    folder: Path

    @property
    def data(self) -> PairsConfig:
        return self.config.pairs

    @property
    def work(self) -> Path:
        return self.folder / WORK

    def run(self) -> Made:
        """Finish the stages that an interrupted preparation has not."""
        finish_stage(self.work / "shards", self._read)
        shards: dict[str, list[Shard]] = {"train": [], "dev": [], "test": []}
        for shard in read_shards(self.work / "shards"):
            shards[self.sources[shard.corpus].split].append(shard)
        labels = self.pairs.labels(shards)
        evaluation = shards["dev"] + shards["test"]
        selection = Selection.of(self.data, shards["train"], evaluation)
        finish_stage(
            self.work / "tokenizer",
            lambda folder: self._make_tokenizer(selection, labels).save(folder),
        )
        tokenizer = Tokenizer.load(self.work / "tokenizer")
        named = {split: self._texts(shards[split]) for split in ("dev", "test") if shards[split]}
        splits = {}
        for split, texts in {**named, **self._held_out(selection)}.items():
            file = f"{split}.arrow"
            encode_pairs(self.folder / file, *texts, tokenizer, with_text=True)
            self.pairs.write(self.folder, split, *texts)
            splits[split] = {"files": [file], "pairs": len(texts[0])}
        splits["train"] = self._encode(selection, tokenizer)
        checksums = {
            str(source.corpus): sha256_of_pairs(
                shard for own in shards.values() for shard in own if shard.corpus == number
            )
            for number, source in enumerate(self.sources)
            if not source.corpus.files
        }
        logger.info(drop_table(splits))
        return Made(tokenizer, splits, checksums)

    def _read(self, folder: Path) -> None:
        languages = self.data.source, self.data.target
        for source in self.sources:
            warn_of_header(source.corpus, languages)
        write_shards(folder, self.sources, self.data.clean, languages)

    def _make_tokenizer(self, selection: Selection, labels: Labels | None) -> Tokenizer:
        own, options = self.own, self.config.tokenizer
        if not own:
            logger.info("training the tokenizer: %s, %d pieces", options.kind, options.vocab_size)

        def trained(*sides: int) -> SentencePieces:
            texts = (pair[side] for pair in selection.sample(options.sample) for side in sides)
            return train_vocabulary(texts, options, tags_of(self.sources) if 0 in sides else [])

        if labels:
            return Tokenizer(own.source if own else trained(0), labels)
        if own:
            return own
        if not options.shared:
            return Tokenizer(trained(0), trained(1))
        vocabulary = trained(0, 1)
        return Tokenizer(vocabulary, vocabulary)

    def _tag(self, shard: Shard) -> str | None:
        return self.sources[shard.corpus].tag

    def _texts(self, shards: Sequence[Shard]) -> Texts:
        """Return the pairs of a development or test set that the recipe names."""
        texts: Texts = [], []
        for shard in shards:
            sources, targets = shard.pairs()
            texts[0].extend(tagged(self._tag(shard), source) for source in sources)
            texts[1].extend(targets)
        return texts

    def _held_out(self, selection: Selection) -> dict[str, Texts]:
        """Return the development and test sets that are held out of the training pairs."""
        texts: dict[str, Texts] = {
            split: ([], []) for split in sorted(set(selection.held_out.values()))
        }
        seen: set[int] = set()
        for shard, verdicts in selection.with_verdicts():
            indices = np.flatnonzero(verdicts == CODES["held_out"])
            hashes = shard.column("source_hash")[indices].tolist()
            for value, source, target in zip(hashes, *shard.pairs(indices), strict=True):
                if value not in seen:
                    seen.add(value)
                    sources, targets = texts[selection.held_out[value]]
                    sources.append(tagged(self._tag(shard), source))
                    targets.append(target)
        return texts

    def _encode(self, selection: Selection, tokenizer: Tokenizer) -> dict[str, Any]:
        """Encode the training pairs that are kept; return their part of the manifest."""
        files = [self.folder / f"train-{i:05}.arrow" for i in range(len(selection.shards))]

        def tasks() -> Iterator[tuple[Any, ...]]:
            for file, (shard, verdicts) in zip(files, selection.with_verdicts(), strict=True):
                indices, tag = np.flatnonzero(verdicts == KEPT), self._tag(shard)
                yield file, shard, indices, tag, self.work / "tokenizer", self.data.clean.max_len

        pairs_per_corpus = dict.fromkeys((shard.corpus for shard in selection.shards), 0)
        with (
            ProgressBar(len(selection.verdicts)) as progress_bar,
            closing(parallel_map(encode_shard, tasks())) as results,
        ):
            for (shard, verdicts), too_long in zip(selection.with_verdicts(), results, strict=True):
                verdicts[too_long] = CODES["max_len"]
                pairs_per_corpus[shard.corpus] += int((verdicts == KEPT).sum())
                progress_bar.advance(len(verdicts))
                left = progress_bar.time_left()
                progress_bar.show(f"  encoding: {sum(pairs_per_corpus.values()):,} pairs{left}")
        self._write_examples(selection)
        pairs, dropped = sum(pairs_per_corpus.values()), selection.dropped()
        require_left(pairs, dropped)
        if dropped.get("held_out", 0) > pairs:
            logger.warning(
                "data.dev_size, data.test_size hold out %d pairs, more than the %d left for "
                "training",
                dropped["held_out"],
                pairs,
            )
        facts = {
            "files": [file.name for file in files],
            "read": len(selection.verdicts),
            "dropped": dropped,
            "pairs": pairs,
            "pairs_per_corpus": list(pairs_per_corpus.values()),
        }
        return facts | self.pairs.facts(Store(files), tokenizer)

    def _write_examples(self, selection: Selection) -> None:
        """Write some of the pairs that each rule has dropped."""
        examples = {
            rule: [[text[:EXAMPLE_CHARACTERS] for text in pair] for pair in pairs]
            for rule, pairs in selection.examples(NUM_EXAMPLES).items()
        }
        text = json.dumps(examples, ensure_ascii=False, indent=2)
        write_text(self.folder / DROPPED_FILE, text + "\n")


def drop_table(splits: dict[str, Any]) -> str:
    """Return the number of training pairs that each rule dropped and the size of each split."""
    dropped = splits["train"]["dropped"]
    rows = [("read", splits["train"]["read"], "")]
    rows += [(f"- {rule}", dropped[rule], RULES[rule]) for rule in RULES if rule in dropped]
    rows += [(split, splits[split]["pairs"], "") for split in ("train", "dev", "test")
             if split in splits]  # fmt: skip
    if labels := splits["train"].get("labels"):
        listed = ", ".join(f"{label}: {count:,}" for label, count in labels.items())
        rows.append(("labels", len(labels), f"in train {shorten(listed, 200)}"))
    return "\n".join(f"  {name:12} {count:>12,}  {note}".rstrip() for name, count, note in rows)
