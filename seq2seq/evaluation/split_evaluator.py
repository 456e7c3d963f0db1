"""The base class of evaluators; validations on the development set of the initial model, too."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seq2seq.config import Config
from seq2seq.data.prepared import PreparedData
from seq2seq.errors import UserError
from seq2seq.evaluation.test_sets import split_of_run
from seq2seq.model.saved import describe_model, find_model
from seq2seq.processes import Processes
from seq2seq.task import Evaluator
from seq2seq.training.records import INITIAL

logger = logging.getLogger(__name__)


@dataclass
class SplitEvaluator(Evaluator):
    """Evaluates models on a split of prepared data; the processes share the work."""

    config: Config
    data: PreparedData
    split: str
    processes: Processes
    validation: bool = False
    """Whether to evaluate as the recipe says for validations."""

    @property
    def limit(self) -> int | None:
        """On how many examples it evaluates; None: on all."""
        return self.config.training.validation_sentences if self.validation else None


@dataclass
class WithInitialSet(Evaluator):
    """Evaluates on a development set, and on that of the initial model."""

    own: Evaluator
    initial: Evaluator
    name: str

    def __call__(self, model: Any) -> dict[str, float]:
        """Return the metrics of both; the names of the second ones begin with `initial_`."""
        initial = {f"{INITIAL}{key}": value for key, value in self.initial(model).items()}
        return self.own(model) | initial

    def extent(self) -> str:
        """Return what both evaluate on."""
        return f"{self.own.extent()}; on that of {self.name}: {self.initial.extent()}"


def with_initial_set(own: SplitEvaluator) -> Evaluator:
    """Return an evaluator of both sets for validations of a run with an initial model."""
    source, processes = own.config.training.init_from, own.processes
    if not (own.validation and source):
        return own
    theirs, problem = None, None
    with processes.main_first():
        try:
            trained, _ = describe_model(find_model(Path(source)))
            theirs = split_of_run(trained, Path(source), own.split, own.data.tokenizer)
        except UserError as error:
            problem = str(error)
    # All processes have both sets, or none has.
    problem = next(filter(None, processes.all_gather([problem])), None)
    if problem or theirs is None:
        logger.warning("what this run forgets is not measured: %s", problem)
        return own
    initial = replace(own, config=replace(own.config, data=trained.data), data=theirs)
    return WithInitialSet(own, initial, source)
