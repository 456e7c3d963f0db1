"""Prepare a recipe's corpora: tokenizer and token ids, in a folder that training memory-maps.

The corpora are read once, into files of text. What is kept is then selected, the tokenizer trained
on a sample, and the rest encoded. Several processes share reading and encoding; what they have
finished is not repeated after an interruption.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from textwrap import shorten
from typing import Any

from seq2seq.config import Config
from seq2seq.data.prepared import PreparedData
from seq2seq.data.store import Store
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Labels, SentencePieces
from seq2seq.errors import UserError
from seq2seq.files import sync, write_text
from seq2seq.preparation.cleaning import CODES, RULES, require_left
from seq2seq.preparation.corpora import TextPair
from seq2seq.preparation.encode import (
    NUM_EXAMPLES,
    Counts,
    EncodeTask,
    encode_block,
    encode_with_text,
    tagged,
)
from seq2seq.preparation.folder import WORK, describe_files, find_or_make
from seq2seq.preparation.ingest import IngestedBlock, ingest, sha256_of_pairs
from seq2seq.preparation.selection import Selection
from seq2seq.preparation.sources import Sources
from seq2seq.preparation.train_vocabulary import train_vocabulary
from seq2seq.preparation.workers import in_order, num_processes
from seq2seq.progress_bar import ProgressBar

Texts = tuple[Sequence[str], Sequence[str]]
"""Source and target sentences."""

DROPPED_FILE = "dropped.json"
"""Examples of the pairs that each rule has dropped."""
EXAMPLE_CHARACTERS = 500
MAX_LABELS = 1000
"""More labels are considered a mistake."""

logger = logging.getLogger(__name__)


def prepare_pairs(
    config: Config, split: str | None = None, *, labelled: bool = False
) -> PreparedData:
    """Return the recipe's prepared data, which are made unless the same inputs were prepared.

    split: see `PreparedData.load`. labelled: the pairs are texts and labels.
    """
    sources = Sources.open(config, labelled=labelled)
    models = sources.tokenizer.checksum if sources.tokenizer else None
    return find_or_make(
        config,
        sources.files(),
        models,
        lambda folder: _Preparation(config, sources, folder, labelled).run(),
        split,
    )


class _Preparation:
    """Fills the folder of prepared data."""

    def __init__(self, config: Config, sources: Sources, folder: Path, labelled: bool) -> None:
        self.config, self.sources, self.folder = config, sources, folder
        self.work, self.processes = folder / WORK, num_processes()
        self.work.mkdir(exist_ok=True)
        self.labelled, self.data = labelled, config.pairs
        languages = self.data.source, self.data.target
        sources.warn_of_headers(languages)
        self.blocks = ingest(sources.corpora, self.data.clean, languages, self.work, self.processes)

    def run(self) -> tuple[Tokenizer, dict[str, Any]]:
        """Return the tokenizer and the manifest."""
        labels = _read_labels(self.blocks) if self.labelled else None
        evaluation = [*self._blocks_of("dev"), *self._blocks_of("test")]
        selection = Selection.of(self.data, self._blocks_of("train"), evaluation)
        tokenizer = self._tokenizer(selection, labels)
        splits = {}
        for split, (sources, targets) in {**self._named(), **self._held_out(selection)}.items():
            file = f"{split}.arrow"
            encode_with_text(self.folder / file, sources, targets, tokenizer)
            self._write_texts(split, sources, targets)
            splits[split] = {"files": [file], "pairs": len(sources)}
        splits["train"] = self._encode(selection, tokenizer)
        inputs = describe_files(self.sources.files()) + [
            {
                "dataset": str(each.corpus),
                "sha256": sha256_of_pairs(block for block in self.blocks if block.corpus == i),
            }
            for i, each in enumerate(self.sources.corpora)
            if not each.corpus.files
        ]
        manifest = {"inputs": inputs, "splits": splits}
        logger.info(drop_table(manifest))
        return tokenizer, manifest

    def _blocks_of(self, split: str) -> list[IngestedBlock]:
        return [block for block in self.blocks if block.split == split]

    def _tokenizer(self, selection: Selection, labels: Labels | None) -> Tokenizer:
        """Return the tokenizer, trained unless an interrupted preparation has."""
        folder = self.work / "tokenizer"
        if not folder.exists():
            draft = folder.with_suffix(".tmp")
            draft.mkdir(exist_ok=True)
            self._make_tokenizer(selection, labels).save(draft)
            sync(*draft.iterdir(), draft)
            draft.rename(folder)
        return Tokenizer.load(folder)

    def _make_tokenizer(self, selection: Selection, labels: Labels | None) -> Tokenizer:
        own, options = self.sources.tokenizer, self.config.tokenizer
        if not own:
            logger.info("training the tokenizer: %s, %d pieces", options.kind, options.vocab_size)

        def trained(*sides: int) -> SentencePieces:
            texts = (pair[side] for pair in selection.sample(options.sample) for side in sides)
            return train_vocabulary(texts, options, self.sources.tags() if 0 in sides else [])

        if labels:
            return Tokenizer(own.source if own else trained(0), labels)
        if own:
            return own
        if not options.shared:
            return Tokenizer(trained(0), trained(1))
        vocabulary = trained(0, 1)
        return Tokenizer(vocabulary, vocabulary)

    def _named(self) -> dict[str, Texts]:
        """Return the development and test sets that the recipe names."""
        found: dict[str, Texts] = {}
        for split in ("dev", "test"):
            if blocks := self._blocks_of(split):
                pairs = [block.pairs() for block in blocks]
                sources = (tagged(blocks[0].tag, text) for texts, _ in pairs for text in texts)
                found[split] = list(sources), [text for _, texts in pairs for text in texts]
        return found

    def _held_out(self, selection: Selection) -> dict[str, Texts]:
        """Return the development and test sets that are held out of the training pairs."""
        found: dict[str, dict[int, TextPair]] = {
            split: {} for split in sorted(set(selection.held_out.values()))
        }
        for block, verdicts in selection.with_verdicts():
            chosen = verdicts == CODES["held_out"]
            if chosen.any():
                hashes = block.source_hashes()[chosen].tolist()
                for value, source, target in zip(hashes, *block.pairs(chosen), strict=True):
                    pair = tagged(block.tag, source), target
                    found[selection.held_out[value]].setdefault(value, pair)
        return {
            split: (
                [source for source, _ in pairs.values()],
                [target for _, target in pairs.values()],
            )
            for split, pairs in found.items()
        }

    def _write_texts(self, split: str, sources: Sequence[str], targets: Sequence[str]) -> None:
        """Write a development or test set as text, for other programs."""
        if self.labelled:
            rows = (f"{label}\t{text}\n" for text, label in zip(sources, targets, strict=True))
            write_text(self.folder / f"{split}.tsv", "".join(rows))
            return
        files = text_files(self.folder, split, self.data.source, self.data.target)
        for file, texts in zip(files, (sources, targets), strict=True):
            write_text(file, "".join(f"{text}\n" for text in texts))

    def _encode(self, selection: Selection, tokenizer: Tokenizer) -> dict[str, Any]:
        """Encode the training pairs that are kept; return their part of the manifest."""
        max_len = self.data.clean.max_len
        blocks = selection.blocks
        files = [f"train-{i:05}.arrow" for i in range(len(blocks))]
        tasks = (
            EncodeTask(
                block,
                verdicts,
                max_len,
                tokenizer=self.work / "tokenizer",
                file=self.folder / file,
                counts=self.work / f"{file}.json",
            )
            for file, (block, verdicts) in zip(files, selection.with_verdicts(), strict=True)
        )
        total, per_corpus = Counts(), dict.fromkeys((block.corpus for block in blocks), 0)
        with (
            ProgressBar(len(selection.verdicts)) as progress_bar,
            closing(in_order(encode_block, tasks, self.processes)) as results,
        ):
            for block, done in zip(blocks, results, strict=True):
                total.add(done)
                per_corpus[block.corpus] += done.pairs
                progress_bar.advance(len(block))
                left = progress_bar.time_left()
                progress_bar.show(f"  encoding: {total.pairs:,} pairs{left}")
        examples = selection.examples(NUM_EXAMPLES) | (
            {"max_len": total.longest} if total.longest else {}
        )
        shortened = {
            rule: [[text[:EXAMPLE_CHARACTERS] for text in pair] for pair in pairs]
            for rule, pairs in examples.items()
        }
        text = json.dumps(shortened, ensure_ascii=False, indent=2)
        write_text(self.folder / DROPPED_FILE, text + "\n")
        dropped = selection.dropped() | ({"max_len": total.too_long} if total.too_long else {})
        require_left(total.pairs, dropped)
        if dropped.get("held_out", 0) > total.pairs:
            logger.warning(
                "data.dev_size, data.test_size hold out %d pairs, more than the %d left for "
                "training",
                dropped["held_out"],
                total.pairs,
            )
        facts = {
            "files": files,
            "read": len(selection.verdicts),
            "dropped": dropped,
            "pairs": total.pairs,
            "pairs_per_corpus": list(per_corpus.values()),
            "source_tokens": total.source_tokens,
            "target_tokens": total.target_tokens,
        }
        if self.labelled:
            store = Store([self.folder / file for file in files])
            facts["labels"] = _count_labels(store, tokenizer)
        return facts


def text_files(folder: Path, split: str, source: str, target: str) -> list[Path]:
    """Return where the sources and targets of a development or test set are, as text."""
    names = ["source", "target"] if source == target else [source, target]
    return [folder / f"{split}.{name.replace('/', '_')}" for name in names]


def drop_table(manifest: dict[str, Any]) -> str:
    """Return the number of training pairs that each rule dropped and the size of each split."""
    splits = manifest["splits"]
    dropped = splits["train"]["dropped"]
    rows = [("read", splits["train"]["read"], "")]
    rows += [(f"- {rule}", dropped[rule], RULES[rule]) for rule in RULES if rule in dropped]
    rows += [(split, splits[split]["pairs"], "") for split in ("train", "dev", "test")
             if split in splits]  # fmt: skip
    if labels := splits["train"].get("labels"):
        listed = ", ".join(f"{label}: {count:,}" for label, count in labels.items())
        rows.append(("labels", len(labels), f"in train {shorten(listed, 200)}"))
    return "\n".join(f"  {name:12} {count:>12,}  {note}".rstrip() for name, count, note in rows)


def _count_labels(store: Store, tokenizer: Tokenizer) -> dict[str, int]:
    """Return the number of training texts of each label; warn of very rare labels."""
    counts = store.target_counts()
    names = tokenizer.target.decode([[i] for i in range(tokenizer.target.size)])
    labels = {name: counts.get(i, 0) for i, name in enumerate(names)}
    if rare := [name for name, count in labels.items() if count < 2]:
        logger.warning(
            "labels with one training text or none: %s; a header line would be read as one of them",
            shorten(", ".join(map(repr, rare)), 200),
        )
    return labels


def _read_labels(blocks: Iterable[IngestedBlock]) -> Labels:
    """Return the labels of `train`; raises UserError if other splits have different ones."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for block in blocks:
        labels = found[block.split]
        labels |= block.labels()
        if not all(label.strip() for label in labels):
            raise UserError(f"data.{block.split}: a text has no label")
        if len(labels) > MAX_LABELS:
            example = max(labels, key=len)
            raise UserError(
                f"data.{block.split}: over {MAX_LABELS} different labels, such as "
                f"{example[:80]!r}: a line is LABEL<TAB>TEXT, in that order"
            )
    known = ", ".join(sorted(found["train"])[:10])
    if len(found["train"]) < 2:
        raise UserError(f"data.train: all texts have one label, {known}: there is nothing to learn")
    for split, labels in found.items():
        if unknown := sorted(labels - found["train"]):
            raise UserError(
                f"data.{split}: the label {unknown[0]!r} is not in the training data, which has "
                f"{known}"
            )
    return Labels(found["train"])
