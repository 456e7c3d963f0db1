"""`seq2seq new --from RUN`: a recipe that continues a model on other data without forgetting."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from seq2seq.config import Config, PairsConfig
from seq2seq.data.prepared import PreparedData
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError
from seq2seq.evaluation.test_sets import split_of_run
from seq2seq.model.saved import describe_model, find_model
from seq2seq.planning.corpus import CorpusFacts, opened
from seq2seq.planning.explain import recipe_text
from seq2seq.planning.plan import rounded, run_trial
from seq2seq.preparation.cleaning import folded, pair_hashes, text_hash
from seq2seq.preparation.corpora import Corpus, TextPair
from seq2seq.preparation.formats import SentencePairs
from seq2seq.progress_bar import duration
from seq2seq.task import load_task
from seq2seq.training.schedule import learning_rate

OLD_SHARE = 0.5
"""Of the old data among the pairs of an epoch."""
RATE = 0.25
"""Peak learning rate, relative to that of the initial model."""
RATE_ALONE = 1 / 16
"""The same where the old data are gone: it forgets less, and learns less."""
EPOCHS = 30
"""Repetitions of the new data."""
FEWEST_UPDATES = 100
FEWEST_HELD_OUT, MOST_HELD_OUT = 20, 500
"""New pairs held out, a fifth of all, for each of the development and the test set."""
FEW_HELD_OUT = 200
"""Sentences below which there is a warning."""
PAIRS_AT_ONCE = 10_000
DATA = {
    "source": "as the initial model",
    "target": "as the initial model",
    "train": "new pairs; then old ones, so that the old domain is not forgotten",
    "dev": "new pairs: they choose the best model",
    "test": "new pairs: for `seq2seq evaluate`, once",
}
"""Why the keys of the section `data` are there."""

logger = logging.getLogger(__name__)


def initial_model(run: Path, source: str, target: str) -> Config:
    """Return the recipe of the model to start from; raises UserError if it does not translate so.

    source, target: the languages that are given, or empty.
    """
    config, _ = describe_model(find_model(run))
    if not load_task(config.task).translates:
        raise UserError(f"--from: {run} does not translate: its task is {config.task}")
    own = config.pairs.source, config.pairs.target
    if (source or own[0], target or own[1]) != own:
        raise UserError(f"--from: that model is for {own[0]} to {own[1]}: leave languages out")
    return config


def fine_tuning(
    name: str, run: Path, config: Config, data: dict[str, Any], facts: CorpusFacts, minutes: float
) -> tuple[str, str]:
    """Write the files of a fine-tuning to data/NAME; return its recipe, and what to expect.

    config: of the initial model, in `run`. data: section `data`, with the new corpora.
    """
    folder = Path("data") / name
    if folder.exists():
        raise UserError(f"{folder}, for the files of this recipe, exists: take another name")
    trial = run_trial(config, facts.sample)
    old, before = _prepared(run, config), config.training
    data, num_new = _write_data(folder, run, old, data, facts)
    per_epoch = num_new * trial.tokens_per_example / (1 - OLD_SHARE if old else 1)
    possible = trial.tokens_per_second * 60 * minutes * 0.9
    size = min(before.batch_tokens, 4096)
    updates = max(FEWEST_UPDATES, rounded(min(EPOCHS * per_epoch, possible) / size))
    repetitions = f"{min(EPOCHS, updates * size / per_epoch):.2g}"
    share = RATE if old else RATE_ALONE
    rate = share * learning_rate(before, config.model.dim, before.warmup_steps)  # of its peak
    training: dict[str, Any] = {
        "init_from": (str(run), "the model to start from"),
        "max_steps": (updates, f"some {repetitions} repetitions of the new pairs"),
        "max_minutes": (minutes, "at most"),
        "batch_tokens": (size, "target tokens per update"),
        "micro_batch_tokens": (min(before.micro_batch_tokens, 8192), "in memory at once"),
        "optimizer": (before.optimizer, "as the initial model"),
        "schedule": ("cosine", "linear warm-up, then down to zero"),
        "lr": (float(f"{rate:.3g}"), f"{share:.4g} of the initial model's: higher forgets more"),
        "warmup_steps": (max(10, updates // 20), "updates"),
        "clip_norm": (before.clip_norm, "as the initial model"),
        "validate_every": (max(20, rounded(updates / 5)), "updates, on both development sets"),
        "validate_every_epochs": (None, "not by epochs"),
        "validation_sentences": (300, "of each development set, to save time"),
        "log_every": (20, "updates"),
    }
    if not before.clip_norm:
        del training["clip_norm"]
    text = recipe_text(
        [
            f"{name}: {run} continued on {num_new:,} pairs, by `seq2seq new --from`.",
            "docs/fine-tune.md has the measurements behind it. Model and tokenizer are those of "
            "the initial model.",
        ],
        {
            "data": {key: (value, DATA[key]) for key, value in data.items()},
            "training": training,
            "decoding": {
                key: (getattr(config.decoding, key), "as the initial model")
                for key in ("beam", "length_penalty")
            },
        },
    )
    expected = duration(min(minutes, updates * size / trial.tokens_per_second / 60 / 0.9))
    return text, f"expect: {expected} of training, {updates:,} updates"


def _prepared(run: Path, config: Config) -> PreparedData | None:
    """Return the data that the initial model was trained on; None, with a warning, without them."""
    try:
        if not config.pairs.train:
            raise UserError(f"{run} does not say what it was trained on")
        data = split_of_run(config, run, "train", Tokenizer.load(find_model(run)))
        return PreparedData.load(data.folder)
    except UserError as error:
        logger.warning("the old data cannot be mixed in, so that more is forgotten: %s", error)
        return None


def _write_data(
    folder: Path, run: Path, old: PreparedData | None, data: dict[str, Any], facts: CorpusFacts
) -> tuple[dict[str, Any], int]:
    """Write training and held-out pairs.

    Returns the section `data` that names them, and the number of new training pairs.
    """
    size = max(FEWEST_HELD_OUT, min(MOST_HELD_OUT, facts.num_kept // 5))
    sizes = {name: 0 if name in data else size for name in ("dev", "test")}
    pairs, num_left_out = _split(opened(data), sizes, old)
    if num_left_out:
        logger.warning(
            "%d new pair(s) are left out: their sources are in the development or test set of %s",
            num_left_out, run,
        )  # fmt: skip
    num_new, num_dev = len(pairs["train"]), len(pairs["dev"])
    if not num_new:
        raise UserError(
            "no new pair is left to train on: the rest are in the development or test set of "
            f"{run}, or held out; give more pairs with --train"
        )
    if sizes["dev"] and not num_dev:
        raise UserError(
            f"{run} was trained on all of these pairs, so that none can be held out as development "
            "set: name one with --dev"
        )
    train: list[Any] = [str(folder / "train")]
    if old:
        pairs["old"] = sample_of(old, num_new * EPOCHS)
        weight = OLD_SHARE / (1 - OLD_SHARE) * num_new / max(1, len(pairs["old"]))
        train.append({"path": str(folder / "old"), "weight": float(f"{weight:.3g}")})
    folder.mkdir(parents=True)
    text_files = SentencePairs(PairsConfig(source=data["source"], target=data["target"]))
    for name, own in pairs.items():
        if own:
            text_files.write(folder, name, own)
    if 0 < num_dev < FEW_HELD_OUT:
        logger.warning(
            "the development set has only %d sentences: its BLEU varies by some points; name a "
            "larger one with --dev", num_dev,
        )  # fmt: skip
    held_out = {name: str(folder / name) for name in sizes if pairs[name]}
    return {**data, "train": train, **held_out}, num_new


def _split(
    corpora: Sequence[Corpus], sizes: Mapping[str, int], old: PreparedData | None
) -> tuple[dict[str, list[TextPair]], int]:
    """Hold sources out of corpora: those with the smallest hashes.

    sizes: how many for each held-out set. old: what the initial model was trained on, whose sources
    are not held out, and scored with, whose sources are left out. Returns the pairs for training
    and for each set, and how many were left out.
    """
    forbidden = _held_out_sources(old) if old else set()
    groups: dict[int, list[TextPair]] = {}
    num_left_out = 0
    for pair in chain.from_iterable(corpora):
        _, source = pair_hashes(*pair)
        if source in forbidden:
            num_left_out += 1
        else:
            groups.setdefault(source, []).append(pair)
    ranked = iter(sorted(groups.keys() - (_known_sources(old, groups) if old else set())))
    pairs = {
        name: [groups.pop(key)[0] for key in islice(ranked, size)] for name, size in sizes.items()
    }
    return {"train": [*chain.from_iterable(groups.values())], **pairs}, num_left_out


def _held_out_sources(data: PreparedData) -> set[int]:
    """Return the hashes of the sources of a run's development and test set."""
    named = [name for name in ("dev", "test") if name in data.manifest["splits"]]
    texts = (text for name in named for text in data.store(name).texts()[0])
    return {text_hash(folded(text)) for text in texts}


def _known_sources(data: PreparedData, groups: Mapping[int, Sequence[TextPair]]) -> set[int]:
    """Return the keys of the groups whose source is in the training set, by its ids."""
    store = data.store("train")
    seen: set[int] = set()
    for start in range(0, len(store), PAIRS_AT_ONCE):
        rows, _ = store.pairs(np.arange(start, min(len(store), start + PAIRS_AT_ONCE)))
        seen.update(hash(row.astype(np.int32).tobytes()) for row in rows)
    encoded = data.tokenizer.source.encode([pairs[0][0] for pairs in groups.values()])
    return {
        key
        for key, ids in zip(groups, encoded, strict=True)
        if hash(np.array(ids, dtype=np.int32).tobytes()) in seen
    }


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
