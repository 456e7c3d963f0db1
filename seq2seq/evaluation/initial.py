"""Validations of a run that starts from another model: on the development sets of both."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
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


class WithInitialSet:
    """Evaluates on a development set, and on that of the initial model."""

    def __init__(self, own: Evaluator, initial: Evaluator, name: str) -> None:
        self._own, self._initial, self._name = own, initial, name

    def __call__(self, model: Any) -> dict[str, float]:
        """Return the metrics of both; the names of the second ones begin with `initial_`."""
        initial = {f"{INITIAL}{key}": value for key, value in self._initial(model).items()}
        return self._own(model) | initial

    def extent(self) -> str:
        """Return what both evaluate on."""
        return f"{self._own.extent()}; on that of {self._name}: {self._initial.extent()}"

    def details(self) -> dict[str, object]:
        """Return those of the own set."""
        return self._own.details()


def with_initial_set(
    make: Callable[..., Evaluator],
    config: Config,
    data: PreparedData,
    *,
    split: str,
    processes: Processes,
    validation: bool = False,
    **options: Any,
) -> Evaluator:
    """Return the evaluator that `make` makes; that of validations has both sets."""
    own = make(config, data, split=split, processes=processes, validation=validation, **options)
    source = config.training.init_from
    if not (validation and source):
        return own
    theirs, problem = None, None
    with processes.main_first():
        try:
            trained, _ = describe_model(find_model(Path(source)))
            theirs = split_of_run(trained, Path(source), split, data.tokenizer)
        except UserError as error:
            problem = str(error)
    # All processes have both sets, or none has.
    problem = next(filter(None, processes.all_gather([problem])), None)
    if problem or theirs is None:
        logger.warning("what this run forgets is not measured: %s", problem)
        return own
    initial = make(
        replace(config, data=trained.data),
        theirs, split=split, processes=processes, validation=True,
    )  # fmt: skip
    return WithInitialSet(own, initial, source)
