"""A training of a few seconds, which measures what a recipe costs on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from statistics import median

from seq2seq.config import Config, CorpusConfig, DataConfig, PairsConfig, TextConfig
from seq2seq.data.json_objects import read_object_file
from seq2seq.data.prepared import PreparedData
from seq2seq.model.saved import MODEL_FILE
from seq2seq.preparation.corpora import TextPair
from seq2seq.task import load_task
from seq2seq.training.records import read_metrics
from seq2seq.training.run import train

SECONDS = 5.0
"""Training time of a trial."""


@dataclass(frozen=True)
class Trial:
    """What a model costs on this machine."""

    tokens_per_second: float
    """Target tokens (of a classifier: tokens)."""
    tokens_per_example: float
    parameters: int
    memory: float
    """GiB."""


def run_trial(config: Config, sample: Sequence[TextPair]) -> Trial:
    """Train a recipe on a sample for some seconds.

    sample: pairs; of a classifier texts and labels; of a language model texts and empty strings.
    """
    with tempfile.TemporaryDirectory() as name, redirect_stderr(StringIO()):
        folder = Path(name)
        training = replace(
            config.training,
            max_minutes=SECONDS / 60,
            max_steps=100_000,
            best_by="nll",
            validate_every=100_000,
            validate_every_epochs=None,
            validation_sentences=1,
            log_every=1,
            average_last=0,
            init_from=None,
        )
        config = replace(config, data=_sample_data(config, sample, folder), training=training)
        data = load_task(config.task).prepare(config)
        train(config, folder / "run")
        updates = [each for each in read_metrics(folder / "run")[0] if each["kind"] == "train"]
        return Trial(
            # The median ignores the first updates, in which kernels are chosen and compiled.
            tokens_per_second=median(float(update["tokens_per_second"]) for update in updates),
            tokens_per_example=_tokens_per_example(config, data, sample),
            parameters=read_object_file(folder / "run" / "last" / MODEL_FILE)["parameters"],
            memory=float(updates[-1]["memory_gib"]),
        )


def _sample_data(config: Config, sample: Sequence[TextPair], folder: Path) -> DataConfig:
    """Write a sample to a folder; return a section `data` that reads only that."""
    data, store = config.data, str(folder / "store")
    if isinstance(data, TextConfig):
        path = folder / "sample.txt"
        path.write_text("".join(text for text, _ in sample), encoding="utf-8")
        return replace(data, text=CorpusConfig(path=str(path)), store=store)
    assert isinstance(data, PairsConfig)
    path, columns = folder / "sample.tsv", (0, 1) if config.translates else (1, 0)
    rows = ["\t".join(pair[i].replace("\t", " ") for i in columns) for pair in sample]
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    size, corpus = max(2, len(rows) // 20), CorpusConfig(path=str(path))
    return replace(
        data, train=(corpus,), dev=None, test=None, dev_size=size, test_size=0, store=store
    )


def _tokens_per_example(config: Config, data: PreparedData, sample: Sequence[TextPair]) -> float:
    """Return the average training tokens of an example: a pair, a text or a character."""
    if isinstance(config.data, TextConfig):
        return len(data.tokens("train")) / max(1, sum(len(text) for text, _ in sample))
    store = data.store("train")
    lens = store.target_lens if config.translates else store.source_lens
    return float(lens.mean()) + 1  # the end or the start symbol
