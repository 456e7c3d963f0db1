"""Interface of tasks for training, evaluation and reports.

`seq2seq/tasks.py` has the tasks. Keys, defaults and checks of their recipes are in
`seq2seq/config/tasks.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:  # not at run time: `score` loads tasks without torch
    from seq2seq.config import Config
    from seq2seq.data.examples import Examples
    from seq2seq.data.prepared import PreparedData
    from seq2seq.data.tokenizer import Tokenizer


class Evaluator(ABC):
    """Evaluates models on a split. Called by all processes, with the same result on all."""

    extent: str
    """Amount of data and settings of the evaluation, for the log."""
    details: dict[str, object]
    """Data size, settings and signatures of the last call's metrics."""

    @abstractmethod
    def __call__(self, model: Any) -> dict[str, float]:
        """Return the metrics of a model, including `training.best_by`."""


@dataclass
class Task:
    """Model, training examples and evaluation of a task."""

    unit: str
    """Unit of the training data (plural)."""
    use: str
    """Command that uses a trained model. `{run}` stands for the run directory."""
    build_model: Callable[[Config, Tokenizer], Any]
    """Returns a newly initialised `Network` (`model/transformer.py`)."""
    examples: Callable[[Config, PreparedData], Examples]
    """Returns the training examples of prepared data."""
    evaluator: Callable[..., Evaluator]
    """Returns an evaluator of a split; for its arguments see `SplitEvaluator`."""


def load_task(name: str) -> Task:
    """Return the task of a recipe."""
    return cast(Task, import_module("seq2seq.tasks").TASKS[name])
