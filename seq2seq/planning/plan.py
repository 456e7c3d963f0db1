"""The plan of a recipe: its size, from a trial on this machine, and all keys with comments."""

from __future__ import annotations

import logging
import math
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from seq2seq.config import Config, commented_yaml, resolve
from seq2seq.data.lines import read_object_file
from seq2seq.data.training_data import examples_of
from seq2seq.evaluation.evaluators import validator
from seq2seq.formats.model_directory import MODEL_FILE
from seq2seq.preparation.prepare import prepare
from seq2seq.terminal import duration
from seq2seq.training.records import read_metrics
from seq2seq.training.run import train

logger = logging.getLogger(__name__)

SECONDS = 5.0
"""Training time of a trial."""
TRAINING_SHARE = 0.93
"""Fraction of a run spent on training updates. Validations and checkpoints take the rest."""


@dataclass(frozen=True)
class Trial:
    """Speed and memory of a model on this machine."""

    tokens_per_second: float
    """Target tokens (classifier: input tokens) per second."""
    tokens_per_epoch: float
    parameters: int
    memory: float
    """Memory in GiB."""

    @property
    def tokens_per_minute(self) -> float:
        """Tokens per minute of a run on all GPUs, including its validations and checkpoints."""
        return self.tokens_per_second * 60 * num_gpus() * TRAINING_SHARE


def num_gpus() -> int:
    """Return the number of processes that `scripts/train` starts: one per GPU, or one on a CPU."""
    return max(1, torch.cuda.device_count())


def run_trial(config: Config) -> Trial:
    """Prepare the data of a recipe and train its model for a few seconds."""
    examples = examples_of(config, prepare(config))
    epoch = examples.lens(examples.order(config.training.seed, 0))
    logger.info("measuring this machine: training for a few seconds")
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
    with tempfile.TemporaryDirectory() as folder, redirect_stderr(StringIO()):
        run = Path(folder) / "run"
        train(replace(config, training=training), run, validator)
        updates = [line for line in read_metrics(run) if line["kind"] == "train"]
        return Trial(
            # The median ignores the slow first updates, which select and compile kernels.
            tokens_per_second=median(float(update["tokens_per_second"]) for update in updates),
            tokens_per_epoch=float(epoch.sum()),
            parameters=read_object_file(run / "last" / MODEL_FILE)["parameters"],
            memory=float(updates[-1]["memory_gib"]),
        )


UNITS = {"translation": "pairs", "classification": "texts", "language_model": "characters"}
MAX_EPOCHS = 100
"""Maximum number of epochs. More repetitions do not improve a model."""
DROPOUT_EPOCHS = 8, 20
"""Maximum numbers of epochs for the first and the second dropout of a size."""
AUGMENT = {
    **{"typos": 0.2, "spaces": 0.1, "lower": 0.04, "join": 0.04},
    **{"copy": 0.03, "quotes": 0.02, "noise": 0.005},
}
"""Rates for `data.augment` of translation models (measured: docs/text.md)."""
COMMENTS = {
    "data.augment": "Shares of pairs that are changed at random (docs/text.md)",
    "tokenizer.vocab_size": "Pieces of words; small corpora need fewer",
    "model.dim": "Hidden size; doubling it needs several times the time and data",
    "training.max_minutes": "Time limit; the learning rate schedule ends with it",
    "training.max_steps": "Maximum number of updates, for faster machines",
    "training.optimizer": "Muon needs half the tokens of Adam",
    "training.lr": "Factor of noam, or peak learning rate; halve it if the loss jumps",
    "training.best_by": "Less noisy than accuracy",
    "training.adam_eps": "Slows the learning of rare words",
    "training.label_smoothing": "Not used for language models",
    "training.validate_every_epochs": "Off: validate by updates",
    "decoding.beam": "1 is over twice as fast, but 1-2 BLEU worse",
    "decoding.length_penalty": "Higher for longer translations",
}
"""Comments that say more about the values of new recipes than the docstrings of their keys."""


class Size(NamedTuple):
    """Model size, its training settings, and how much data it needs to beat the smaller size."""

    name: str
    dim: int
    ffn_dim: int
    num_heads: int
    layers: int
    """Number of encoder layers and of decoder layers."""
    optimizer: str
    lr: float
    batch_tokens: int
    tokens: float
    """Minimum number of training tokens, including repetitions."""
    examples: int
    """Minimum number of distinct training examples."""
    dropouts: tuple[float, float, float]
    """Dropout for few, some and many epochs (see `DROPOUT_EPOCHS`)."""
    context: int = 512


SIZES = {
    "translation": (
        Size("tiny", 128, 512, 4, 3, "muon", 0.008, 2048, 0, 0, (0.05, 0.15, 0.3)),
        Size("small", 256, 1024, 4, 4, "muon", 0.006, 4096, 30e6, 30_000, (0.1, 0.2, 0.3)),
        Size("medium", 512, 1024, 4, 6, "muon", 0.004, 8192, 200e6, 100_000, (0.1, 0.2, 0.3)),
        Size("base", 512, 2048, 8, 6, "adam", 2.0, 25_000, 1.5e9, 1_000_000, (0.1, 0.1, 0.3)),
        Size("big", 1024, 4096, 16, 6, "adam", 2.0, 25_000, 10e9, 4_000_000, (0.1, 0.3, 0.3)),
    ),
    "language_model": (
        Size("small", 192, 768, 3, 6, "muon", 0.01, 8192, 0, 0, (0.05, 0.1, 0.2), 256),
        Size("medium", 384, 1536, 6, 6, "muon", 0.008, 16_384, 150e6, 10**6, (0.05, 0.2, 0.2), 256),
        Size("large", 512, 2048, 8, 12, "muon", 0.005, 32_768, 2e9, 50_000_000, (0.05, 0.1, 0.2)),
    ),
    "classification": (Size("small", 128, 512, 4, 2, "muon", 0.005, 8192, 0, 0, (0.3, 0.5, 0.5)),),
}


@dataclass(frozen=True)
class Request:
    """Input of `seq2seq new`: the task, the data and the time."""

    name: str
    task: str
    data: Mapping[str, Any]
    """Section `data` of the recipe, from `data_of_files`."""
    minutes: float
    num_examples: int
    smallest: int
    """Number of examples of the smallest corpus that development and test sets are taken from."""
    num_languages: int


def sized_recipe(request: Request) -> str:
    """Try increasing model sizes on this machine; return a recipe of the largest useful size."""
    chosen: tuple[Size, Trial] | None = None
    tokens = 0.0
    for size in SIZES[request.task]:
        # A larger model trains on fewer tokens in the same time.
        if chosen and (request.num_examples < size.examples or tokens < size.tokens):
            break
        recipe = {**_recipe(request, size, epochs=1, updates=1), "name": request.name}
        trial = run_trial(resolve(recipe, "the new recipe"))
        tokens = trial.tokens_per_minute * request.minutes
        if tokens < size.tokens:
            break
        chosen = size, trial
    assert chosen  # the first size has no minimum
    return _text(request, *chosen)


def _text(request: Request, size: Size, trial: Trial) -> str:
    """Return the recipe for a size; log the expected cost. The trial determines its length."""
    tokens = trial.tokens_per_minute * request.minutes
    epochs = min(tokens / trial.tokens_per_epoch, MAX_EPOCHS)
    trained = epochs * trial.tokens_per_epoch
    recipe = _recipe(request, size, epochs, trained / size.batch_tokens)
    expected = duration(request.minutes * trained / tokens)
    model = f"{trial.parameters / 1e6:.1f} million parameters"
    memory = max(0.5, 1.2 * trial.memory)
    logger.info("expected: %s of training, %.1f GiB of memory; %s", expected, memory, model)
    title = f"""\
# {request.name}: {request.num_examples:,} {UNITS[request.task]}, {expected} of training on this \
machine, by `seq2seq new`.
# All keys: docs/recipe.md. Model size `{size.name}` (docs/sizes.md): {model},
# {trial.tokens_per_second:,.0f} training tokens per second, {tokens / 1e6:,.1f} million tokens in \
total, {epochs:.1f} epochs.
"""
    comments = {"model.dropout": f"For {epochs:.1f} epochs; raise it for more epochs"}
    return title + commented_yaml(recipe, COMMENTS | comments)


def _recipe(request: Request, size: Size, epochs: float, updates: float) -> dict[str, Any]:
    """Return the recipe for a size and an expected number of epochs and updates."""
    minutes, muon = request.minutes, size.optimizer == "muon"
    # Room for more updates than expected, if other programs slowed the trial down.
    max_steps = updates * min(4, MAX_EPOCHS / epochs)
    data = dict(request.data)
    if request.task != "language_model":  # a language model holds out fractions of its text
        held_out = max(10, min(1000, request.smallest // 20))
        data |= {f"{split}_size": held_out for split in ("dev", "test") if split not in data}
    if request.task == "translation":
        data |= {"protect": ["all"], "augment": AUGMENT}
    recipe = {"task": request.task, "data": data, **_of_task(request, size)}
    recipe["model"] |= {
        "dim": size.dim,
        "ffn_dim": size.ffn_dim,
        "num_heads": size.num_heads,
        "dropout": dropout(size, epochs),
        "norm": "pre",
    }
    recipe["training"] = {
        "max_minutes": minutes,
        "max_steps": max(50, rounded(max_steps)),
        "batch_tokens": size.batch_tokens,
        "micro_batch_tokens": size.batch_tokens * 3 // 2,  # room for longer, changed pairs
        "optimizer": size.optimizer,
        **({"schedule": "cosine", "clip_norm": 1.0} if muon else {"schedule": "noam"}),
        "lr": size.lr,
        "warmup_steps": min(100 if muon else 4000, max(5, round(updates / 20))),
        "validate_every": max(20, rounded(updates / 10)),
        "validate_every_epochs": None,
        "checkpoint_every_minutes": round(min(max(3.0, minutes / 5), 10.0, minutes / 3), 2),
        "log_every": 20 if max_steps < 20_000 else 100,
        **recipe["training"],
    }
    return recipe


def _of_task(request: Request, size: Size) -> dict[str, Any]:
    """Return the keys that not all tasks have."""
    vocabulary = {"vocab_size": vocab_size(request)}
    encoder, decoder = {"encoder_layers": size.layers}, {"decoder_layers": size.layers}
    context = {"context": size.context, "activation": "gelu"}
    if request.task == "translation":
        return {
            "tokenizer": vocabulary,
            "model": {**encoder, **decoder, "positions": "rotary"},
            "training": {"validation_sentences": 200},  # to save time
            "decoding": {"beam": 5, "length_penalty": 1.0},
        }
    if request.task == "classification":
        return {
            "tokenizer": {**vocabulary, "bpe_dropout": 0.1},
            "model": {**encoder, "positions": "learned", **context},
            "training": {"best_by": "nll", "weight_decay": 0.1, "adam_eps": 1e-4},
        }
    return {
        "tokenizer": {"kind": "char"},
        "model": {**decoder, "positions": "rotary", **context},
        "training": {"label_smoothing": 0.0},
    }


def vocab_size(request: Request) -> int:
    """Return the vocabulary size for the number of pairs or texts and of languages."""
    if request.task == "classification":  # its texts are long
        return 8_000 if request.num_examples < 20_000 else 16_000
    others = max(1, request.num_languages - 1)  # in most models, English has a pair with each
    size = 4_000 * 2 ** bisect_right([20_000, 400_000, 2_000_000], request.num_examples / others)
    # Measured for nine languages: recipes/libreoffice/RESULTS.md.
    return min(64_000, size * max(3, request.num_languages) // 3)


def dropout(size: Size, epochs: float) -> float:
    """Return the dropout for a number of epochs."""
    return size.dropouts[bisect_left(DROPOUT_EPOCHS, epochs)]


def rounded(number: float) -> int:
    """Return a number rounded up to two significant digits."""
    digits = 10 ** max(0, math.floor(math.log10(max(1.0, number))) - 1)
    return math.ceil(number / digits) * digits
