"""One training run from recipe to run directory: data, model, processes."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from datetime import timedelta
from itertools import islice
from pathlib import Path

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedDataParallelKwargs, parse_flag_from_env, set_seed

from seq2seq.config import Config, to_yaml
from seq2seq.data.batching import TrainingData
from seq2seq.data.prepare import PreparedData, prepare
from seq2seq.errors import UserError
from seq2seq.model.directory import build_model
from seq2seq.training.checkpoint import Progress
from seq2seq.training.memory import keep_freed_memory
from seq2seq.training.trainer import Evaluate, Trainer, resolve_precision

logger = logging.getLogger(__name__)


def train(
    config: Config, run: Path, make_evaluate: Callable[[Config, PreparedData], Evaluate]
) -> Progress:
    """Train the recipe in the directory `run`, or go on with what is there."""
    training = config.training
    accelerator = _accelerator(config, run)
    if accelerator.device.type == "cpu":
        keep_freed_memory()
    if not accelerator.is_main_process:
        logging.getLogger("seq2seq").setLevel(logging.WARNING)
    with accelerator.main_process_first():
        data = prepare(config)
    set_seed(training.seed)
    model = build_model(config, data.tokenizer)
    # The same weights everywhere, but dropout of its own on every process.
    set_seed(training.seed, device_specific=True)
    trainer = Trainer(
        config,
        run,
        model,
        data.tokenizer,
        _training_data(config, data, accelerator),
        make_evaluate(config, data),
        accelerator,
    )
    if accelerator.is_main_process:
        run.mkdir(parents=True, exist_ok=True)
        (run / "recipe.yaml").write_text(to_yaml(config), encoding="utf-8")
        data.tokenizer.save(run)
    logger.info(
        "%s: %.1fM parameters, %d training pairs, %s on %s, %d thread(s) in %d process(es)",
        run,
        model.num_parameters() / 1e6,
        data.manifest["splits"]["train"]["pairs"],
        accelerator.mixed_precision if accelerator.mixed_precision != "no" else "fp32",
        accelerator.device.type,
        torch.get_num_threads(),
        accelerator.num_processes,
    )
    progress = trainer.train()
    accelerator.end_training()
    return progress


def _accelerator(config: Config, run: Path) -> Accelerator:
    # The state that comes first decides on device and processes for all that follow. Processes
    # wait while the first one prepares data or validates, however long that takes.
    cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
    state = PartialState(cpu=cpu, timeout=timedelta(hours=24))
    precision = resolve_precision(config.training.precision, state.device)
    if config.training.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise UserError("training.tensorboard=true needs the package: pip install tensorboard")
    accelerator = Accelerator(
        kwargs_handlers=[
            # The position table is the same everywhere and may grow on one process alone.
            DistributedDataParallelKwargs(broadcast_buffers=False),
        ],
        mixed_precision="bf16" if precision == "bf16" else "no",
        log_with="tensorboard" if config.training.tensorboard else None,
        project_dir=str(run),
    )
    if config.training.tensorboard:
        accelerator.init_trackers("tensorboard")
    return accelerator


def _training_data(config: Config, data: PreparedData, accelerator: Accelerator) -> TrainingData:
    training = config.training
    stream = TrainingData(
        data.store("train"),
        data.tokenizer,
        corpus_sizes=data.manifest["splits"]["train"]["pairs_per_corpus"],
        corpus_weights=[corpus.weight for corpus in config.data.train],
        batch_tokens=training.batch_tokens,
        micro_batch_tokens=training.micro_batch_tokens,
        bpe_dropout=config.tokenizer.bpe_dropout,
        seed=training.seed,
        process=accelerator.process_index,
        num_processes=accelerator.num_processes,
    )
    first = list(islice(stream.epoch(0), 20))
    logger.info(
        "an update: up to %d target tokens, in %.1f micro-batches of up to %d padded tokens for "
        "each of %d process(es)",
        training.batch_tokens,
        sum(len(update.batches) for update in first) / max(1, len(first)),
        training.micro_batch_tokens,
        accelerator.num_processes,
    )
    return stream
