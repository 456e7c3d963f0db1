"""Runs as systems: they translate a test set with the search of their recipe."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from seq2seq.config import Config
from seq2seq.data.prepared import PreparedData, checksum_of
from seq2seq.data.streams import process_shared
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.translator import Translator
from seq2seq.errors import UserError
from seq2seq.evaluation.evaluators import describe_search
from seq2seq.evaluation.systems import System, TestSet
from seq2seq.evaluation.test_sets import given_pairs, split_of_run, tag_of
from seq2seq.model.saved import describe_model, find_model, load_tokenizer
from seq2seq.preparation.formats import SentencePairs
from seq2seq.processes import Processes
from seq2seq.task import load_task
from seq2seq.training.records import data_of, read_metrics, tokens_until

READ_SENTENCES = 10_000
"""Number of training sentences in memory at once."""

logger = logging.getLogger(__name__)


class Run:
    """A run or model directory, opened without its weights."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config: Config
        self.config, self._checksum = describe_model(find_model(path))
        if not load_task(self.config.task).translates:
            raise UserError(
                f"{path} does not translate: its task is {self.config.task}; compare such runs by "
                "`seq2seq evaluate` of each, and by `seq2seq report` of both"
            )

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return load_tokenizer(find_model(self.path), self._checksum)

    def prepared(self, split: str) -> PreparedData:
        """Return the data that the run was trained with."""
        return split_of_run(self.config, self.path, split, self.tokenizer)

    def texts(self, split: str, data: str | None = None) -> tuple[list[str], list[str]]:
        """Return a split of the run's data, or other files (`test_sets.given_files`)."""
        if data is not None:
            pairs = given_pairs(SentencePairs(self.config.pairs), data)
            return [source for source, _ in pairs], [target for _, target in pairs]
        return self.prepared(split).store(split).texts()

    def training_sources(self) -> Iterator[str]:
        """Yield the source sentences of the training data; none if they are gone."""
        try:
            store = self.prepared("train").store("train")
        except UserError as error:
            logger.warning("nothing is said about the training data: %s", error)
            return
        logger.info("looking for the nearest of %d training sentences of %s", len(store), self.path)
        for start in range(0, len(store), READ_SENTENCES):
            rows, _ = store.pairs(np.arange(start, min(start + READ_SENTENCES, len(store))))
            yield from self.tokenizer.source.decode([row.tolist() for row in rows])

    def translate(self, name: str, test_set: TestSet, processes: Processes) -> System:
        """Translate with the recipe's search, as `evaluate` does."""
        translator = Translator.load(
            self.path, device=processes.device,
            tag=None if test_set.is_tagged else tag_of(self.config),
        )  # fmt: skip
        if processes.is_main:
            logger.info("%s translates %d sentences", self.path, len(test_set.sources))
        lines = process_shared(translator.translate, test_set.sources, processes)
        search = describe_search(translator.decoding, translator.engines.precision)
        return System(name, lines, self._facts() | {"search": search})

    def _facts(self) -> dict[str, Any]:
        """Return what is known of the training."""
        facts: dict[str, Any] = {}
        steps, tokens = tokens_until(read_metrics(self.path)[0])
        if len(steps) > 1:
            facts |= {"updates": steps[-1], "target tokens": round(tokens[-1])}
        if trained_with := data_of(self.path):  # not a model directory
            facts["training data"] = checksum_of(trained_with, "train")[:12]
        return facts
