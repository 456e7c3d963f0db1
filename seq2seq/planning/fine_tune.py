"""`seq2seq new --from RUN`: a recipe that continues a model on other data without forgetting."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from seq2seq.config import Config, CorpusConfig, PairsConfig, from_tree, with_paths
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError
from seq2seq.evaluation.test_sets import split_of_run
from seq2seq.model.saved import describe_model, find_model, vocabulary_files
from seq2seq.planning.corpus import Request
from seq2seq.planning.sizes import rounded
from seq2seq.planning.templates import aligned, data_section, flow
from seq2seq.planning.trial import run_trial
from seq2seq.progress_bar import duration
from seq2seq.training.records import corpus_files, current_path
from seq2seq.training.schedule import learning_rate

RATE = 0.25
"""Peak learning rate as a fraction of the initial model's."""
RATE_ALONE = 1 / 16
"""The same without old data: the model forgets less, and learns less."""
EPOCHS = 30
"""Repetitions of the new data."""
FEWEST_UPDATES = 100
FEWEST_HELD_OUT, MOST_HELD_OUT = 20, 500
"""New pairs held out, a fifth of all, for each of the development and the test set."""

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
    return with_paths(config, partial(current_path, run=run))


def fine_tuning(request: Request, run: Path, config: Config) -> tuple[str, str]:
    """Return the recipe of a fine-tuning, and what to expect.

    config: recipe of the initial model, in `run`.
    """
    minutes, before = request.minutes, config.training
    held_out = max(FEWEST_HELD_OUT, min(MOST_HELD_OUT, request.num_examples // 5))
    sizes = {f"{split}_size": held_out for split in ("dev", "test") if split not in request.data}
    num_new = request.num_examples - sum(sizes.values())
    data = {**request.data, **sizes}
    old = _old_data(run, config, num_new)
    if old:
        data |= {"train": [*data["train"], *old["train"]], "exclude": old["exclude"]}
    models = tuple(map(str, vocabulary_files(find_model(run))))
    trial = run_trial(
        replace(
            config,
            name=request.name,
            data=from_tree(PairsConfig(), data, "the new recipe", "data"),
            tokenizer=replace(config.tokenizer, models=models),
        )
    )
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
  validate_every: {max(20, rounded(updates / 5))}  # updates
  validate_every_epochs: null  # not by epochs
  validation_sentences: 300  # of the development set, to save time
  log_every: 20  # updates
decoding:
  beam: {config.decoding.beam}  # as the initial model
  length_penalty: {config.decoding.length_penalty}  # as the initial model
"""
    expected = duration(min(minutes, updates * size / trial.tokens_per_second / 60 / 0.9))
    return aligned(text), f"expect: {expected} of training, {updates:,} updates"


def _old_data(run: Path, config: Config, num_new: int) -> dict[str, list[Any]]:
    """Return the corpora of the initial model, weighted to have `num_new` pairs in an epoch.

    With its development and test set, which are files in the prepared data if they were held out.
    Warns and returns {} if its corpora are not known or not there.
    """
    try:
        if gone := [str(file) for file in corpus_files(run) if not file.exists()]:
            raise UserError(f"{gone[0]} not found")
        data = split_of_run(config, run, "train", Tokenizer.load(find_model(run)))
    except UserError as error:
        logger.warning(
            "cannot mix in the old training data (%s): the model will forget more of its old "
            "domain",
            error,
        )
        return {}
    corpora, sizes = config.pairs.train, data.facts("train")["pairs_per_corpus"]
    weighted = sum(size * corpus.weight for size, corpus in zip(sizes, corpora, strict=True))
    train = [
        _tree(corpus) | {"weight": float(f"{num_new / weighted * corpus.weight:.3g}")}
        for corpus in corpora
    ]
    exclude = [
        _tree(corpus) if corpus else str((data.folder / split).absolute())
        for split, corpus in (("dev", config.pairs.dev), ("test", config.pairs.test))
        if split in data.manifest["splits"]
    ]
    return {"train": train, "exclude": exclude}


def _tree(corpus: CorpusConfig) -> dict[str, Any]:
    """Return the keys of a corpus that have no default."""
    default = vars(CorpusConfig())
    return {key: value for key, value in vars(corpus).items() if value != default[key]}
