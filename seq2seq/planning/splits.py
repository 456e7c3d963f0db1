"""The files of a fine-tuning: new pairs without held-out ones, and old pairs to be mixed in."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from seq2seq.data.prepared import PreparedData
from seq2seq.files import atomic_file
from seq2seq.preparation.cleaning import folded, pair_hashes, text_hash
from seq2seq.preparation.corpora import Corpus, TextPair

PAIRS_AT_ONCE = 10_000


@dataclass(frozen=True)
class Splits:
    """New pairs, by what they are for."""

    train: Sequence[TextPair]
    dev: Sequence[TextPair]
    test: Sequence[TextPair]
    left_out: int
    """Pairs whose source is in the development or test set of the initial model."""


def split(
    corpora: Iterable[Corpus],
    dev_size: int,
    test_size: int,
    *,
    forbidden: Collection[int] = (),
    known: Callable[[Sequence[str]], list[bool]] = lambda sources: [False] * len(sources),
) -> Splits:
    """Hold sources out of corpora: those with the smallest hashes.

    forbidden: hashes of sources that must not be trained on, since the initial model is scored
    with them. known: says which sources it was trained on, which are not held out.
    """
    groups: dict[int, list[TextPair]] = {}
    left_out = 0
    for corpus in corpora:
        for pair in corpus:
            _, source = pair_hashes(*pair)
            if source in forbidden:
                left_out += 1
            else:
                groups.setdefault(source, []).append(pair)
    sources = [groups[source][0][0] for source in groups]
    ranked = sorted(key for key, seen in zip(groups, known(sources), strict=True) if not seen)
    held = {"dev": ranked[:dev_size], "test": ranked[dev_size : dev_size + test_size]}
    held_out = {name: [groups.pop(source)[0] for source in own] for name, own in held.items()}
    train = [pair for pairs in groups.values() for pair in pairs]
    return Splits(train, held_out["dev"], held_out["test"], left_out)


def held_out_sources(data: PreparedData) -> set[int]:
    """Return the hashes of the sources of a run's development and test set."""
    named = [name for name in ("dev", "test") if name in data.manifest["splits"]]
    texts = (text for name in named for text in data.store(name).texts()[0])
    return {text_hash(folded(text)) for text in texts}


def known_sources(data: PreparedData) -> Callable[[Sequence[str]], list[bool]]:
    """Return a function that says which texts are sources of the training set, as ids."""
    store, vocabulary = data.store("train"), data.tokenizer.source
    seen: set[int] = set()
    for start in range(0, len(store), PAIRS_AT_ONCE):
        rows, _ = store.pairs(np.arange(start, min(len(store), start + PAIRS_AT_ONCE)))
        seen.update(hash(row.astype(np.int32).tobytes()) for row in rows)

    def known(texts: Sequence[str]) -> list[bool]:
        encoded = vocabulary.encode(texts)
        return [hash(np.array(ids, dtype=np.int32).tobytes()) in seen for ids in encoded]

    return known


def sample_of(data: PreparedData, count: int) -> list[TextPair]:
    """Return at most `count` training pairs of prepared data, drawn at random, as text."""
    store, tokenizer = data.store("train"), data.tokenizer
    drawn = random.Random(1).sample(range(len(store)), min(count, len(store)))
    pairs: list[TextPair] = []
    for start in range(0, len(drawn), PAIRS_AT_ONCE):
        rows = store.pairs(np.array(sorted(drawn)[start : start + PAIRS_AT_ONCE]))
        both = zip((tokenizer.source, tokenizer.target), rows, strict=True)
        texts = (vocabulary.decode([ids.tolist() for ids in own]) for vocabulary, own in both)
        pairs += zip(*texts, strict=True)
    return pairs


def write_pairs(prefix: Path, languages: Sequence[str], pairs: Sequence[TextPair]) -> None:
    """Write aligned files PREFIX.LANGUAGE."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    for side, language in enumerate(languages):
        with atomic_file(prefix.with_name(f"{prefix.name}.{language}")) as stream:
            stream.writelines(f"{pair[side]}\n".encode() for pair in pairs)
