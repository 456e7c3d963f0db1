"""Evaluate models of any task on a split of the recipe's data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seq2seq.config import Config, with_batch_tokens
from seq2seq.data.prepared import PreparedData, checksum_of
from seq2seq.errors import SharedError, UserError
from seq2seq.evaluation.tasks import TASKS
from seq2seq.model.directory import load_model
from seq2seq.model.saved import find_model
from seq2seq.preparation.folder import find_prepared
from seq2seq.preparation.prepare import prepare
from seq2seq.processes import Processes
from seq2seq.training.provenance import last_start

MAX_TABLE = 20
"""Maximum number of labels of a confusion matrix that is printed; --json prints any."""


def evaluate_run(
    run: Path,
    checkpoint: str | None,
    split: str,
    processes: Processes,
    *,
    stride: int | None = None,
    random_windows: int | None = None,
    batch_tokens: int | None = None,
) -> dict[str, Any]:
    """Return the metrics of a trained model on a split, and the settings of the evaluation.

    stride, random_windows: see `TextEvaluator`; for language models only. batch_tokens: replaces
    training.micro_batch_tokens and decoding.batch_tokens.
    """
    loaded = load_model(find_model(run, checkpoint), processes.device)
    config = with_batch_tokens(loaded.config, batch_tokens)
    options = {"stride": stride, "random_windows": random_windows}
    options = {name: value for name, value in options.items() if value is not None}
    if options and config.task != "language_model":
        raise SharedError(
            f"{run} is not a language model: --stride and --random-windows are only for those"
        )
    if not config.data.train and config.data.text is None:
        raise SharedError(
            f"{run} does not say with which data it was trained: translate a test set, and compare "
            "the translations with `seq2seq score`"
        )
    with processes.main_first():
        data = _prepared(config, run, split)
    if data.tokenizer.checksum != loaded.tokenizer.checksum:
        raise UserError(
            f"the prepared data in {data.folder} have a different tokenizer than {run}: the "
            "corpora have changed since it was trained"
        )
    _require_same_split(run, data, split)
    evaluator = TASKS[config.task].evaluator(
        config, data, split=split, processes=processes, **options
    )
    metrics: dict[str, Any] = evaluator(loaded.model)
    return metrics | evaluator.details()


def _prepared(config: Config, run: Path, split: str) -> PreparedData:
    """Return the prepared data with this split, even if their corpora are gone.

    Raises SharedError if both are.
    """
    try:
        trained_with = last_start(run)["data"]
        files = [each["file"] for each in trained_with["inputs"] if "file" in each]
        fingerprint = trained_with["fingerprint"]
    except (KeyError, TypeError):  # a model directory
        return prepare(config, split)
    gone = next((file for file in files if not Path(file).exists()), None)
    if gone is None:
        return prepare(config, split)
    if folder := find_prepared(Path(config.data.store), fingerprint):
        return PreparedData.load(folder, split)
    raise SharedError(
        f"{gone} is gone, and so are the data in {config.data.store} that were prepared from it: "
        f"restore either of them to evaluate {run}"
    )


def _require_same_split(run: Path, data: PreparedData, split: str) -> None:
    """Raise SharedError if a run was trained with another split, held out of other corpora."""
    try:
        before = checksum_of(last_start(run)["data"], split)
    except (KeyError, TypeError):  # a model directory, or a run without that split
        return
    if data.checksum(split) != before:
        raise SharedError(
            f"the {split} set in {data.folder} is not the one that {run} was trained with: the "
            "corpora have changed since; restore them, or train a new run"
        )


def metrics_text(metrics: dict[str, Any]) -> str:
    """Return the result of `evaluate_run` as readable lines."""
    lines = []
    for name, value in metrics.items():
        if isinstance(value, dict):
            if len(value) <= MAX_TABLE:
                lines += [f"{name} (one row per true label)", *_table(value)]
        else:
            lines.append(f"{name:20} {f'{value:.4f}' if isinstance(value, float) else value}")
    return "\n".join(lines)


def _table(rows: dict[str, dict[str, int]]) -> list[str]:
    header = f"  {'':12} {' '.join(f'{name:>10}' for name in rows)}"
    return [header] + [
        f"  {name:12} {' '.join(f'{count:10,}' for count in row.values())}"
        for name, row in rows.items()
    ]
