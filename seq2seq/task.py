"""The interface of a task: what training, evaluation and reports ask it for.

The tasks themselves are in `seq2seq/tasks/`, a module each, whose name is the task's. Their keys,
defaults and checks in a recipe are in `seq2seq/config/tasks.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

if TYPE_CHECKING:  # loads no torch: `score` asks for the task of a run
    from seq2seq.config import Config
    from seq2seq.data.examples import Examples
    from seq2seq.data.prepared import PreparedData
    from seq2seq.data.tokenizer import Tokenizer


class Evaluator(ABC):
    """Evaluates models on a split. All processes call it, with the same result."""

    extent: str
    """On how much it evaluates, and how."""
    details: dict[str, object]
    """What the metrics of the last call depend on."""

    @abstractmethod
    def __call__(self, model: Any) -> dict[str, float]:
        """Return the metrics of a model, among them that of training.best_by."""


class Task(ABC):
    """The model, the training examples and the evaluation of a task."""

    unit: ClassVar[str]
    """What the training data are counted in."""
    use: ClassVar[str]
    """The command for a trained model; `{run}` is its run directory."""

    @abstractmethod
    def build_model(self, config: Config, tokenizer: Tokenizer) -> Any:
        """Return a newly initialised `Network` (`model/transformer.py`)."""

    @abstractmethod
    def examples(self, config: Config, data: PreparedData) -> Examples:
        """Return the training examples of prepared data."""

    @abstractmethod
    def evaluator(self, config: Config, data: PreparedData, **options: Any) -> Evaluator:
        """Return an evaluator of a split.

        options: split, processes, validation (whether to evaluate as the recipe says for
        validations), and stride of a language model.
        """

    def require_initial(self, tokenizer: Tokenizer, folder: Path) -> None:
        """Raise SharedError if training with a tokenizer cannot start from a model directory."""
        return

    def finish(self, folders: Sequence[Path]) -> None:
        """Add what the model directories of a finished run lack; called on the main process."""
        return


def load_task(name: str) -> Task:
    """Return the task of a recipe."""
    return cast(Task, import_module(f"seq2seq.tasks.{name}").TASK)
