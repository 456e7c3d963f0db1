"""What a task is: everything that depends on the key `task` of a recipe.

The tasks themselves are in `seq2seq/tasks/`, a module each, whose name is the task's.
"""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from seq2seq.errors import UserError, shown

if TYPE_CHECKING:
    from seq2seq.config import Config, DataConfig
    from seq2seq.data.examples import Examples
    from seq2seq.data.prepared import PreparedData
    from seq2seq.data.tokenizer import Tokenizer
    from seq2seq.model.transformer import Network
    from seq2seq.planning.corpus import CorpusFacts
    from seq2seq.planning.sizes import Size
    from seq2seq.preparation.corpora import TextPair
    from seq2seq.report.page import Charts

PACKAGE = "seq2seq.tasks"


class Evaluator(ABC):
    """Evaluates models on a split. All processes call it, with the same result."""

    @abstractmethod
    def __call__(self, model: Any) -> dict[str, float]:
        """Return the metrics of a model, among them that of training.best_by."""

    @abstractmethod
    def extent(self) -> str:
        """Return on how much it evaluates, and how."""

    def details(self) -> dict[str, object]:
        """Return what the metrics of the last call depend on."""
        return {}


class Planner(ABC):
    """Makes the recipes of a task for given files, for `seq2seq new`."""

    unit: ClassVar[str]
    """What the examples are."""
    sizes: ClassVar[Sequence[Size]]
    """The models to choose from, from small to large."""
    enough: ClassVar[int] = 0
    """Examples below which a model that is trained on them alone is poor."""
    comments: ClassVar[Mapping[str, str]]
    """Keys of such a recipe besides those of all tasks, and why they are there."""

    @abstractmethod
    def data(self, files: Mapping[str, Sequence[str]], source: str, target: str) -> dict[str, Any]:
        """Return the section `data` for the files of `train`, `dev` and `test`."""

    @abstractmethod
    def examine(self, data: dict[str, Any]) -> CorpusFacts:
        """Read the corpora of a section `data`, and log what they are."""

    def held_out(self, data: dict[str, Any], facts: CorpusFacts) -> dict[str, int]:
        """Return the keys that say how much is held out for the sets that are not given."""
        size = max(10, min(1000, facts.num_kept // 20))
        return {f"{split}_size": size for split in ("dev", "test") if split not in data}

    @abstractmethod
    def settings(self, facts: CorpusFacts) -> dict[str, dict[str, Any]]:
        """Return the values, by section, that depend neither on the size nor on the machine."""

    @abstractmethod
    def sample_data(self, data: Any, sample: Sequence[TextPair], folder: Path) -> DataConfig:
        """Write a sample to a folder; return a section `data` that reads it."""

    @abstractmethod
    def tokens_per_example(self, data: PreparedData, sample: Sequence[TextPair]) -> float:
        """Return the average training tokens of an example of the prepared sample."""


class Task(ABC):
    """A task: the keys of its recipes, its data, model, training examples and evaluation.

    Methods import what they connect, so that a command imports only what it uses.
    """

    defaults: ClassVar[Config]
    """The recipe of this task in which every key has its default."""
    unused: ClassVar[Sequence[str]] = ()
    """Keys and sections that have no effect."""
    best_by: ClassVar[Sequence[str]]
    """Metrics of validations that can select the best model."""
    unit: ClassVar[str]
    """What the training data are counted in."""
    use: ClassVar[str]
    """The command for a trained model; `{run}` is its run directory."""
    pipeline_tag: ClassVar[str]
    """Its name in model cards of Hugging Face."""
    translates: ClassVar[bool] = False
    """Whether models translate, so that translations can be searched, written and scored."""
    evaluation_options: ClassVar[Sequence[str]] = ()
    """Options of `seq2seq evaluate` that only this task has."""

    @abstractmethod
    def check(self, config: Config) -> None:
        """Raise UserError for values of a recipe that do not fit this task."""

    @abstractmethod
    def prepare(self, config: Config, split: str | None = None) -> PreparedData:
        """Return the prepared data of a recipe, made unless the same inputs were prepared before.

        split: see `PreparedData.load`.
        """

    @abstractmethod
    def encode(
        self, config: Config, tokenizer: Tokenizer, data: str, folder: Path
    ) -> dict[str, Any]:
        """Encode the files that `--data` names to a folder, as the split `test`.

        Returns the split's entry of the manifest.
        """

    @abstractmethod
    def build_model(self, config: Config, tokenizer: Tokenizer) -> Network:
        """Return a newly initialised model."""

    @abstractmethod
    def examples(self, config: Config, data: PreparedData) -> Examples:
        """Return the training examples of prepared data."""

    @abstractmethod
    def evaluator(self, config: Config, data: PreparedData, **options: Any) -> Evaluator:
        """Return an evaluator of a split.

        options: split, processes, validation (whether to evaluate as the recipe says for
        validations), and those of evaluation_options.
        """

    @property
    def planner(self) -> Planner:
        """What writes recipes of this task, for `seq2seq new`."""
        raise UserError(f"`seq2seq new` has no recipes for task={self.defaults.task}")

    def samples(
        self, charts: Charts, run: Path, name: str, device: str, sentence: str | None
    ) -> list[str]:
        """Return the part of a report that shows what a model does, in HTML.

        sentence: a source whose search is shown, for a task that translates.
        """
        return []

    def languages(self, config: Config) -> list[str]:
        """Return source and target language of a translation."""
        return []

    def require_initial(self, tokenizer: Tokenizer, folder: Path) -> None:
        """Raise SharedError if training with a tokenizer cannot start from a model directory."""
        return

    def finish(self, folders: Sequence[Path]) -> None:
        """Add what the model directories of a finished run lack; called on the main process."""
        return


@cache
def task_names() -> list[str]:
    """Return the names of all tasks, translation first."""
    package = import_module(PACKAGE)
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return sorted(names, key=lambda name: name != "translation")


def load_task(name: object) -> Task:
    """Return a task; raises UserError for an unknown name."""
    if name not in task_names():
        raise UserError(f"task={shown(name)} must be one of: {', '.join(task_names())}")
    return cast(Task, import_module(f"{PACKAGE}.{name}").TASK)
