"""From raw corpora to a folder that training maps into memory.

The corpora are read in a stream, and more than once: to check and count them (keeping eight bytes
a pair), to train the tokenizer on a bounded sample, and to tokenise what is kept.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from textwrap import shorten
from typing import Any

from seq2seq.config import Config
from seq2seq.data.cleaning import RULES, text_hash
from seq2seq.data.prepared import PreparedData, describe_inputs, find_or_make, fingerprint_of
from seq2seq.data.selection import Selection, Sources
from seq2seq.data.store import Store, StoreWriter
from seq2seq.data.text import prepare_text
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import train_vocabulary
from seq2seq.errors import UserError

ENCODE_BATCH = 2_000
"""Sentences that the tokenizer is handed at once."""

logger = logging.getLogger(__name__)


def prepare(config: Config) -> PreparedData:
    """Make the recipe's prepared folder, or find the one made before from the same inputs."""
    if config.task == "language_model":
        return prepare_text(config)
    sources = Sources.open(config)
    models = sources.own_tokenizer.checksum if sources.own_tokenizer else None
    fingerprint = fingerprint_of(config, sources.files(), models)
    return find_or_make(config, fingerprint, lambda folder: _write(config, sources, folder))


def drop_table(manifest: dict[str, Any]) -> str:
    """Return how many training pairs each rule dropped, and how many every split holds."""
    splits = manifest["splits"]
    rows = [("read", splits["train"]["read"], "")]
    rows += [
        (f"- {rule}", count, RULES[rule])
        for rule, count in sorted(
            splits["train"]["dropped"].items(), key=lambda item: list(RULES).index(item[0])
        )
    ]
    rows += [(split, splits[split]["pairs"], "") for split in ("train", "dev", "test")
             if split in splits]  # fmt: skip
    if labels := splits["train"].get("labels"):
        listed = ", ".join(f"{label}: {count:,}" for label, count in labels.items())
        rows.append(("labels", len(labels), f"in train {shorten(listed, 200)}"))
    return "\n".join(f"  {name:12} {count:>12,}  {note}".rstrip() for name, count, note in rows)


def _write(config: Config, sources: Sources, folder: Path) -> tuple[Tokenizer, dict[str, Any]]:
    selection = Selection.scan(config, sources)
    tokenizer = _make_tokenizer(config, selection)
    splits: dict[str, Any] = {}
    for split, (options, corpus) in sources.held_out.items():
        pairs = ((_tagged(options.tag, source), target) for source, target in corpus)
        splits[split] = _write_held_out(folder, split, pairs, tokenizer)
    splits |= _write_train(config, selection, folder, tokenizer)
    if config.task == "classification":
        splits["train"]["labels"] = _count_labels(Store(folder / "train.arrow"), tokenizer)
    manifest = {"inputs": describe_inputs(sources.files()), "splits": splits}
    logger.info(drop_table(manifest))
    return tokenizer, manifest


def _count_labels(store: Store, tokenizer: Tokenizer) -> dict[str, int]:
    """Return how many training texts each label has; warn of those that cannot be learned."""
    counts = store.target_counts()
    names = tokenizer.target.decode([[i] for i in range(tokenizer.target.size)])
    labels = {name: counts.get(i, 0) for i, name in enumerate(names)}
    if rare := [name for name, count in labels.items() if count < 2]:
        logger.warning(
            "labels with one training text or none: %s; a head line would be read as one of them",
            shorten(", ".join(map(repr, rare)), 200),
        )
    return labels


def _make_tokenizer(config: Config, selection: Selection) -> Tokenizer:
    own, options, tags = selection.sources.own_tokenizer, config.tokenizer, selection.sources.tags()
    if not own:
        logger.info("training the tokenizer: %s, %d pieces", options.kind, options.vocab_size)
    if config.task == "classification":
        texts = (text for text, _ in selection.sample())
        source = own.source if own else train_vocabulary(texts, options, tags)
        return Tokenizer(source, selection.labels)
    if own:
        return own
    if options.shared:
        texts = (text for pair in selection.sample() for text in pair)
        vocabulary = train_vocabulary(texts, options, tags)
        return Tokenizer(vocabulary, vocabulary)
    source = train_vocabulary((source for source, _ in selection.sample()), options, tags)
    target = train_vocabulary((target for _, target in selection.sample()), options, [])
    return Tokenizer(source, target)


def _tagged(tag: str | None, source: str) -> str:
    return f"{tag} {source}" if tag and source.strip() else source


def _write_held_out(
    folder: Path, split: str, pairs: Iterable[tuple[str, str]], tokenizer: Tokenizer
) -> dict[str, Any]:
    stream = iter(pairs)
    count = 0
    with StoreWriter(folder / f"{split}.arrow", with_text=True) as writer:
        while chunk := list(islice(stream, ENCODE_BATCH)):
            sources, targets = zip(*chunk, strict=True)
            encoded = zip(
                tokenizer.source.encode(sources), tokenizer.target.encode(targets), strict=True
            )
            for (source_ids, target_ids), (source, target) in zip(encoded, chunk, strict=True):
                writer.add(source_ids, target_ids, source, target)
            count += len(chunk)
    return {"file": f"{split}.arrow", "pairs": count}


def _write_train(
    config: Config, selection: Selection, folder: Path, tokenizer: Tokenizer
) -> dict[str, Any]:
    # A classifier reads as much of a text as its context holds.
    max_len = None if config.task == "classification" else config.data.clean.max_len
    dropped: Counter[str] = Counter()
    per_corpus = [0] * len(selection.sources.train)
    tokens = Counter[str]()
    held_out: dict[str, dict[int, tuple[str, str]]] = {
        split: {} for split in sorted(set(selection.held_out.values()))
    }

    def kept() -> Iterator[tuple[int, str, str]]:
        for corpus, source, target, rule in selection.pairs():
            tagged = _tagged(selection.sources.train[corpus][0].tag, source)
            if rule is None:
                yield corpus, tagged, target
                continue
            dropped[rule] += 1
            if rule == "held_out":
                value = text_hash(source)
                held_out[selection.held_out[value]].setdefault(value, (tagged, target))

    stream = kept()
    with StoreWriter(folder / "train.arrow") as writer:
        while chunk := list(islice(stream, ENCODE_BATCH)):
            corpora, sources, targets = zip(*chunk, strict=True)
            source_rows = tokenizer.source.encode(sources)
            target_rows = tokenizer.target.encode(targets)
            for corpus, source_ids, target_ids in zip(
                corpora, source_rows, target_rows, strict=True
            ):
                if max_len is not None and max(len(source_ids), len(target_ids)) > max_len:
                    dropped["max_len"] += 1
                    continue
                writer.add(source_ids, target_ids)
                per_corpus[corpus] += 1
                tokens["source_tokens"] += len(source_ids) + 1
                tokens["target_tokens"] += len(target_ids) + 1
    left = sum(per_corpus)
    if not left:
        raise UserError(f"no training pair is left: the cleaning rules dropped {dict(dropped)}")
    if dropped["held_out"] > left:
        logger.warning(
            "data.dev_size, data.test_size hold out %d pairs, more than the %d left for training",
            dropped["held_out"],
            left,
        )
    splits: dict[str, Any] = {
        split: _write_held_out(folder, split, pairs.values(), tokenizer)
        for split, pairs in held_out.items()
    }
    splits["train"] = {
        "file": "train.arrow",
        "read": selection.num_read,
        "dropped": dict(dropped),
        "pairs": left,
        "pairs_per_corpus": per_corpus,
        **tokens,
    }
    return splits
