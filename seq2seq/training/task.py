"""What training needs to know about a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seq2seq.config import Config
from seq2seq.data.prepared import PreparedData
from seq2seq.data.training_data import Examples

MakeEvaluator = Callable[..., Any]
"""Maps (config, prepared data, split=, processes=, validation=) to an `Evaluate` that also has the
methods `details`, for `seq2seq evaluate`, and `extent`, what it evaluates on."""
Evaluate = Callable[[Any], dict[str, float]]
"""Maps a model to its metrics on the development set, including that of training.best_by. Called by
all processes, with the same result."""


@dataclass(frozen=True)
class Task:
    """The training data and the evaluation of a task (`task` in a recipe)."""

    examples: Callable[[Config, PreparedData], Examples]
    """Makes the training examples of prepared data."""
    evaluator: MakeEvaluator
    unit: str
    """What the training data are counted in."""
    complete: Callable[[PreparedData, Sequence[Path], str], None] | None = None
    """Adds what a finished model lacks: called with the prepared data, the model directory and the
    device, on the main process."""
