"""Interface of tasks for training, evaluation and reports.

Tasks are implemented in `seq2seq/tasks/`, one module per task. Keys, defaults and checks of their
recipes are in `seq2seq/config/tasks.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

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


class Task(ABC):
    """Model, training examples and evaluation of a task."""

    unit: ClassVar[str]
    """Unit of the training data (plural)."""
    use: ClassVar[str]
    """Command that uses a trained model. `{run}` stands for the run directory."""

    @abstractmethod
    def build_model(self, config: Config, tokenizer: Tokenizer) -> Any:
        """Return a newly initialised `Network` (`model/transformer.py`)."""

    @abstractmethod
    def examples(self, config: Config, data: PreparedData) -> Examples:
        """Return the training examples of prepared data."""

    @abstractmethod
    def evaluator(self, config: Config, data: PreparedData, **options: Any) -> Evaluator:
        """Return an evaluator of a split.

        options: split, processes, validation (whether to use the recipe's settings for
        validations) and, for a language model, stride.
        """

    def require_initial(self, tokenizer: Tokenizer, folder: Path) -> None:
        """Raise UserError if a model directory cannot initialise training with a tokenizer."""
        return


def load_task(name: str) -> Task:
    """Return the task of a recipe."""
    return cast(Task, import_module(f"seq2seq.tasks.{name}").TASK)
