"""`seq2seq new --from RUN`: a recipe that continues a model on other data without forgetting."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from seq2seq.config import Config, PairsConfig, from_tree
from seq2seq.data.prepared import PreparedData
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError
from seq2seq.evaluation.test_sets import split_of_run
from seq2seq.files import remove_folder
from seq2seq.model.saved import describe_model, find_model, vocabulary_files
from seq2seq.planning.corpus import Request, opened
from seq2seq.planning.sizes import rounded
from seq2seq.planning.templates import aligned, data_section, flow
from seq2seq.planning.trial import run_trial
from seq2seq.preparation.cleaning import folded
from seq2seq.preparation.corpora import TextPair
from seq2seq.preparation.formats import SentencePairs
from seq2seq.progress_bar import duration
from seq2seq.training.schedule import learning_rate

OLD_SHARE = 0.5
"""Fraction of old pairs in each epoch."""
RATE = 0.25
"""Peak learning rate as a fraction of the initial model's."""
RATE_ALONE = 1 / 16
"""The same without old data: the model forgets less, and learns less."""
EPOCHS = 30
"""Repetitions of the new data."""
FEWEST_UPDATES = 100
FEWEST_HELD_OUT, MOST_HELD_OUT = 20, 500
"""New pairs held out, a fifth of all, for each of the development and the test set."""
FEW_HELD_OUT = 200
"""Sentences below which there is a warning."""
MOST_OLD = 500_000
"""Old pairs that are written."""
PAIRS_AT_ONCE = 10_000

logger = logging.getLogger(__name__)


def initial_model(run: Path, source: str, target: str) -> Config:
    """Return the recipe of the model to start from; raises UserError if it does not translate so.

    source, target: the languages that are given, or empty.
    """
    config, _ = describe_model(find_model(run))
    if not config.translates:
        raise UserError(f"--from: {run} does not translate: its task is {config.task}")
    own = config.pairs.source, config.pairs.target
    if (source or own[0], target or own[1]) != own:
        raise UserError(f"--from: that model is for {own[0]} to {own[1]}: leave languages out")
    return config


def fine_tuning(request: Request, run: Path, config: Config) -> tuple[str, str]:
    """Write the files of a fine-tuning to data/NAME; return its recipe, and what to expect.

    config: recipe of the initial model, in `run`.
    """
    folder, minutes = Path("data") / request.name, request.minutes
    if folder.exists():
        raise UserError(f"{folder}, for the files of this recipe, exists: take another name")
    old, before = _prepared(run, config), config.training
    data, num_new = _write_data(folder, run, old, request)
    models = tuple(map(str, vocabulary_files(find_model(run))))
    config = replace(
        config,
        name=request.name,
        data=from_tree(PairsConfig(), data, "data"),
        tokenizer=replace(config.tokenizer, models=models),
    )
    try:
        trial = run_trial(config)
    except BaseException:
        remove_folder(folder)
        raise
    per_epoch = trial.tokens_per_epoch
    possible = trial.tokens_per_second * 60 * minutes * 0.9
    size = min(before.batch_tokens, 4096)
    updates = max(FEWEST_UPDATES, rounded(min(EPOCHS * per_epoch, possible) / size))
    share = RATE if old else RATE_ALONE
    peak = learning_rate(before, config.model.dim, before.warmup_steps)
    repetitions = min(EPOCHS, updates * size / per_epoch)
    text = f"""\
# {request.name}: {run} continued on {num_new:,} pairs, by `seq2seq new --from`.
# docs/fine-tune.md has the measurements behind it. Model and tokenizer are the initial model's.
{data_section(data)}training:
  init_from: {flow(str(run))}  # the model to start from
  max_steps: {updates}  # some {repetitions:.2g} repetitions of the new pairs
  max_minutes: {minutes}  # at most
  batch_tokens: {size}  # target tokens per update
  micro_batch_tokens: {min(before.micro_batch_tokens, 8192)}  # in memory at once
  optimizer: {before.optimizer}  # as the initial model
  schedule: cosine  # linear warm-up, then down to zero
  lr: {share * peak:.3g}  # {share:.4g} of the initial model's: higher forgets more
  warmup_steps: {max(10, updates // 20)}  # updates
  clip_norm: {flow(before.clip_norm)}  # as the initial model
  validate_every: {max(20, rounded(updates / 5))}  # updates, on both development sets
  validate_every_epochs: null  # not by epochs
  validation_sentences: 300  # of each development set, to save time
  log_every: 20  # updates
decoding:
  beam: {config.decoding.beam}  # as the initial model
  length_penalty: {config.decoding.length_penalty}  # as the initial model
"""
    expected = duration(min(minutes, updates * size / trial.tokens_per_second / 60 / 0.9))
    return aligned(text), f"expect: {expected} of training, {updates:,} updates"


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
    folder: Path, run: Path, old: PreparedData | None, request: Request
) -> tuple[dict[str, Any], int]:
    """Write training and held-out pairs.

    Returns the section `data` that names them, and the number of new training pairs.
    """
    section = from_tree(PairsConfig(), request.data, "--train", "data")
    of_source: dict[str, list[TextPair]] = {}
    for pair in chain.from_iterable(opened(section)):
        of_source.setdefault(folded(pair[0]), []).append(pair)
    of_source.pop("", None)  # would be dropped
    if old and (held_out := _held_out_sources(old) & of_source.keys()):
        logger.warning(
            "%d new pair(s) are left out: their sources are in the development or test set of %s",
            sum(len(of_source.pop(source)) for source in held_out),
            run,
        )
    known = _known_sources(old, [*of_source]) if old else set()
    unknown = [source for source in of_source if source not in known]
    random.Random(1).shuffle(unknown)
    size = max(FEWEST_HELD_OUT, min(MOST_HELD_OUT, request.num_examples // 5))
    pairs: dict[str, list[TextPair]] = {}
    for split in [split for split in ("dev", "test") if split not in request.data]:
        pairs[split] = [of_source.pop(source)[0] for source in unknown[:size]]
        del unknown[:size]
    pairs["train"] = [*chain.from_iterable(of_source.values())]
    if not all(pairs.values()):
        raise UserError(
            f"too few pairs are new: {run} knows the others from its training, development or test "
            "set; give more with --train, or a development and a test set with --dev and --test"
        )
    data = {**request.data, **{split: str(folder / split) for split in pairs}}
    num_new = len(pairs["train"])
    if old:
        pairs["old"] = sample_of(old, min(MOST_OLD, num_new * EPOCHS))
        weight = OLD_SHARE / (1 - OLD_SHARE) * num_new / max(1, len(pairs["old"]))
        corpus = {"path": str(folder / "old"), "weight": float(f"{weight:.3g}")}
        data["train"] = [data["train"], corpus]
    folder.mkdir(parents=True)
    for split, own in pairs.items():
        SentencePairs(section).write(folder, split, own)
    if (num_dev := len(pairs.get("dev", ()))) in range(1, FEW_HELD_OUT):
        logger.warning(
            "the development set has only %d sentences: its BLEU varies by some points; name a "
            "larger one with --dev",
            num_dev,
        )
    return data, num_new


def _held_out_sources(data: PreparedData) -> set[str]:
    """Return the sources of a run's development and test set."""
    named = data.manifest["splits"].keys() & {"dev", "test"}
    return {folded(text) for name in named for text in data.store(name).texts()[0]}


def _known_sources(data: PreparedData, sources: Sequence[str]) -> set[str]:
    """Return the sources that are in the training set, by their ids."""
    store = data.store("train")
    seen: set[bytes] = set()
    for numbers in np.array_split(np.arange(len(store)), len(store) // PAIRS_AT_ONCE + 1):
        seen.update(ids.astype(np.int32).tobytes() for ids in store.pairs(numbers)[0])
    encoded = data.tokenizer.source.encode(sources)
    rows = zip(sources, encoded, strict=True)
    return {source for source, ids in rows if np.array(ids, np.int32).tobytes() in seen}


def sample_of(data: PreparedData, count: int) -> list[TextPair]:
    """Return at most `count` training pairs of prepared data, drawn at random, as text."""
    store, tokenizer = data.store("train"), data.tokenizer
    drawn = random.Random(1).sample(range(len(store)), min(count, len(store)))
    sources, targets = store.pairs(np.array(sorted(drawn)))
    return list(
        zip(
            tokenizer.source.decode([ids.tolist() for ids in sources]),
            tokenizer.target.decode([ids.tolist() for ids in targets]),
            strict=True,
        )
    )
