"""From raw corpora to a folder that training maps into memory.

The corpora are read in a stream, and more than once: to check and count them (keeping eight bytes
a pair), to train the tokenizer on a bounded sample, and to tokenise what is kept.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import logging
import os
import shutil
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from seq2seq.config import Config, CorpusConfig
from seq2seq.data.cleaning import RULES, HashSet, repeated, text_hash, text_rule
from seq2seq.data.corpus import Corpus, open_corpus
from seq2seq.data.store import Store, StoreWriter
from seq2seq.data.tokenizer import Tokenizer, train_vocabulary
from seq2seq.errors import UserError
from seq2seq.folders import sha256_of, sync

STORE_FORMAT = 2
ENCODE_BATCH = 2_000
"""Sentences that the tokenizer is handed at once."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreparedData:
    """A prepared folder: tokenizer, `train`, `dev` and perhaps `test`, and how they came to be."""

    folder: Path
    tokenizer: Tokenizer
    manifest: dict[str, Any]

    @classmethod
    def load(cls, folder: Path) -> PreparedData:
        """Open a prepared folder; its tokenizer must be the one that made it."""
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        tokenizer = Tokenizer.load(folder)
        if tokenizer.checksum != manifest["tokenizer"]:
            raise UserError(
                f"the tokenizer in {folder} is not the one that its data were made with; "
                "delete the folder to prepare them anew"
            )
        for split, facts in manifest["splits"].items():
            path = folder / f"{split}.arrow"
            if not path.exists() or sha256_of(path) != facts["sha256"]:
                raise UserError(
                    f"{path} is not what was prepared; delete {folder} to prepare it anew"
                )
        return cls(folder, tokenizer, manifest)

    def store(self, split: str) -> Store:
        """Open `train`, `dev` or `test`."""
        path = self.folder / f"{split}.arrow"
        if not path.exists():
            raise UserError(f"the recipe has no {split} set: name one with data.{split}=PREFIX")
        return Store(path)


def prepare(config: Config) -> PreparedData:
    """Make the recipe's prepared folder, or find the one made before from the same inputs."""
    sources = _Sources.open(config)
    fingerprint = _fingerprint(config, sources)
    folder = Path(config.data.store) / f"{config.name}-{fingerprint}"
    if (folder / "manifest.json").exists():
        logger.info("prepared data found in %s", folder)
        return PreparedData.load(folder)
    logger.info("preparing %s", folder)
    # Written beside and renamed: a killed run leaves nothing that looks finished.
    draft = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        manifest = _write(config, sources, draft)
        manifest |= {"fingerprint": fingerprint}
        text = json.dumps(manifest, indent=2, ensure_ascii=False)
        (draft / "manifest.json").write_text(text + "\n", encoding="utf-8")
        sync(*draft.iterdir(), draft)
        try:
            draft.rename(folder)
        except OSError:
            if not (folder / "manifest.json").exists():  # else another process was quicker
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    logger.info(drop_table(manifest))
    return PreparedData.load(folder)


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
    return "\n".join(f"  {name:12} {count:>12,}  {note}".rstrip() for name, count, note in rows)


@dataclass(frozen=True)
class _Sources:
    train: list[tuple[CorpusConfig, Corpus]]
    held_out: dict[str, tuple[CorpusConfig, Corpus]]
    """`dev` and `test`, as far as the recipe names them."""
    own_tokenizer: Tokenizer | None

    @classmethod
    def open(cls, config: Config) -> _Sources:
        data = config.data
        named = {"dev": data.dev, "test": data.test}
        train = [(c, open_corpus(c, data.source, data.target, "data.train")) for c in data.train]
        held_out = {
            split: (corpus, open_corpus(corpus, data.source, data.target, f"data.{split}"))
            for split, corpus in named.items()
            if corpus
        }
        models = [Path(path) for path in config.tokenizer.models]
        own_tokenizer = Tokenizer.from_files(models) if models else None
        sources = cls(train, held_out, own_tokenizer)
        for tag in sources.tags():
            if own_tokenizer and not own_tokenizer.source.knows(tag):
                raise UserError(
                    f"data.train: tag={tag!r} is no symbol of {models[0]}: train that model with "
                    "it as user_defined_symbols"
                )
        return sources

    def corpora(self) -> list[tuple[CorpusConfig, Corpus]]:
        return [*self.train, *self.held_out.values()]

    def files(self) -> list[Path]:
        return [path for _, corpus in self.corpora() for path in corpus.files]

    def tags(self) -> list[str]:
        return sorted({config.tag for config, _ in self.corpora() if config.tag})


def _fingerprint(config: Config, sources: _Sources) -> str:
    """Name the inputs by path, size and time, and every option that shapes the prepared data."""
    tokenizer = asdict(config.tokenizer)
    del tokenizer["bpe_dropout"]
    data = asdict(config.data)
    del data["store"]
    for corpus in data["train"]:
        del corpus["weight"]
    if sources.own_tokenizer:
        tokenizer["models"] = sources.own_tokenizer.checksum
    inputs = []
    for path in sources.files():
        status = path.stat()
        inputs.append([str(path.resolve()), status.st_size, status.st_mtime_ns])
    identity = json.dumps([STORE_FORMAT, data, tokenizer, inputs], sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()[:12]


def _write(config: Config, sources: _Sources, folder: Path) -> dict[str, Any]:
    selection = _Selection.scan(config, sources)
    tokenizer = _make_tokenizer(config, selection)
    tokenizer.save(folder)
    manifest: dict[str, Any] = {
        "format": STORE_FORMAT,
        "tokenizer": tokenizer.checksum,
        "inputs": [
            {"file": str(path), "bytes": path.stat().st_size, "sha256": sha256_of(path)}
            for path in sources.files()
        ],
        "splits": {},
    }
    for split, (options, corpus) in sources.held_out.items():
        pairs = ((_tagged(options.tag, source), target) for source, target in corpus)
        manifest["splits"][split] = _write_held_out(folder, split, pairs, tokenizer)
    manifest["splits"] |= _write_train(config, selection, folder, tokenizer)
    for split, facts in manifest["splits"].items():
        facts["sha256"] = sha256_of(folder / f"{split}.arrow")
    return manifest


class _Selection:
    """What the first reading learned: which pairs to keep, to drop and to hold out."""

    def __init__(self, config: Config, sources: _Sources) -> None:
        self.config = config
        self.sources = sources
        self.num_read = 0
        self.eval_sources = HashSet([])
        self.repeated_pairs = HashSet([])
        self.held_out: dict[int, str] = {}
        """Source hashes of the pairs that become `dev` or `test`."""

    @classmethod
    def scan(cls, config: Config, sources: _Sources) -> _Selection:
        """Read everything once; any fault in the input shows here, before the work."""
        self = cls(config, sources)
        clean, data = config.data.clean, config.data
        eval_hashes = array("Q")
        for split, (_, corpus) in sources.held_out.items():
            before = len(eval_hashes)
            eval_hashes.extend(text_hash(source) for source, _ in corpus)
            if len(eval_hashes) == before:
                raise UserError(f"data.{split}: {corpus} is empty")
        if clean.overlap:
            self.eval_sources = HashSet(np.array(eval_hashes, dtype=np.uint64))
        pair_hashes = array("Q")
        num_held_out = data.dev_size + data.test_size
        smallest = _SmallestHashes(num_held_out)
        for _, corpus in sources.train:
            before = self.num_read
            for source, target in corpus:
                self.num_read += 1
                if clean.duplicates:
                    pair_hashes.append(text_hash(source, target))
                if num_held_out and text_rule(clean, source, target) is None:
                    value = text_hash(source)
                    if value not in self.eval_sources:
                        smallest.add(value)
            if self.num_read == before:
                raise UserError(f"data.train: {corpus} is empty")
        self.repeated_pairs = HashSet(repeated(np.frombuffer(pair_hashes, dtype=np.uint64)))
        if len(smallest) < num_held_out:
            raise UserError(
                f"data.dev_size + data.test_size = {num_held_out}, but the training corpora have "
                f"only {len(smallest)} different source sentences: hold fewer out with smaller ones"
            )
        for rank, value in enumerate(smallest.sorted()):
            self.held_out[value] = "dev" if rank < data.dev_size else "test"
        return self

    def pairs(self) -> Iterator[tuple[int, str, str, str | None]]:
        """Yield corpus number, source, target and the rule that drops the pair, if any."""
        clean = self.config.data.clean
        self.repeated_pairs.reset()
        for number, (_, corpus) in enumerate(self.sources.train):
            for source, target in corpus:
                rule = text_rule(clean, source, target)
                if rule is None and len(self.repeated_pairs):
                    rule = self._repetition(text_hash(source, target))
                if rule is None and (self.held_out or len(self.eval_sources)):
                    value = text_hash(source)
                    if value in self.eval_sources:
                        rule = "overlap"
                    elif value in self.held_out:
                        rule = "held_out"
                yield number, source, target, rule

    def _repetition(self, value: int) -> str | None:
        if value not in self.repeated_pairs or self.repeated_pairs.take(value):
            return None
        return "duplicates"

    def sample(self) -> Iterator[tuple[str, str]]:
        """Yield kept pairs, at most about `tokenizer.sample`, chosen by their hash."""
        bound = 2**64 * self.config.tokenizer.sample // max(self.num_read, 1)
        for _, source, target, rule in self.pairs():
            if rule is None and text_hash(target, source) < bound:
                yield source, target


class _SmallestHashes:
    """The `count` smallest different hashes of a stream."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._members: set[int] = set()
        self._heap: list[int] = []

    def __len__(self) -> int:
        return len(self._members)

    def add(self, value: int) -> None:
        if value in self._members:
            return
        if len(self._heap) < self._count:
            heapq.heappush(self._heap, -value)
            self._members.add(value)
        elif self._heap and value < -self._heap[0]:
            self._members.remove(-heapq.heapreplace(self._heap, -value))
            self._members.add(value)

    def sorted(self) -> list[int]:
        return sorted(self._members)


def _make_tokenizer(config: Config, selection: _Selection) -> Tokenizer:
    if selection.sources.own_tokenizer:
        return selection.sources.own_tokenizer
    options, tags = config.tokenizer, selection.sources.tags()
    logger.info("training the tokenizer: %s, %d pieces", options.kind, options.vocab_size)
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
    return {"pairs": count}


def _write_train(
    config: Config, selection: _Selection, folder: Path, tokenizer: Tokenizer
) -> dict[str, Any]:
    max_len = config.data.clean.max_len
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
        "read": selection.num_read,
        "dropped": dict(dropped),
        "pairs": left,
        "pairs_per_corpus": per_corpus,
        **tokens,
    }
    return splits
