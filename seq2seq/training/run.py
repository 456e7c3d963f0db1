"""Set up and run a training."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, GradientAccumulationPlugin, set_seed

from seq2seq.config import Config, TrainingConfig, to_yaml, with_paths
from seq2seq.data.store import PreparedData
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.training_data import TrainingData, examples_of
from seq2seq.data.vocabulary import Labels
from seq2seq.errors import UserError, require_extra
from seq2seq.files import write_file
from seq2seq.formats.model_directory import find_model
from seq2seq.formats.weights import load_weights, require_undamaged
from seq2seq.machine.devices import describe_device, keep_freed_memory
from seq2seq.machine.precision import DTYPES, Precision, resolve_precision
from seq2seq.machine.threads import usable_cores
from seq2seq.model.transformer import Network, Transformer, build_model
from seq2seq.preparation.prepare import prepare
from seq2seq.processes import Processes
from seq2seq.training.log import summary
from seq2seq.training.records import record_start
from seq2seq.training.run_directory import RunDirectory, RunState, locked
from seq2seq.training.schedule import is_finished
from seq2seq.training.trainer import Evaluate, Trainer
from seq2seq.training.update import Updater

MAX_WORKERS = 4
"""Maximum number of processes that load data for a GPU."""

Validator = Callable[[Config, PreparedData, Processes], Evaluate]
"""Returns a function that evaluates a model on the development set. All processes call it."""

logger = logging.getLogger(__name__)


def train(config: Config, run: Path, validator: Validator) -> RunState:
    """Train a recipe in the run directory `run`, or resume the run there."""
    processes = Processes.join()
    if not processes.is_main:
        logging.getLogger("seq2seq").setLevel(logging.ERROR)
    try:
        with locked(run, processes):
            state = _train(config, run, validator, processes)
    except SystemExit as stop:  # stopped by a signal
        processes.exit(int(stop.code or 0))
        raise
    processes.exit()
    return state


def _train(config: Config, run: Path, validator: Validator, processes: Processes) -> RunState:
    precision = _precision(config.training, processes)
    accelerator = make_accelerator(config.training, run)
    if accelerator.device.type == "cpu":
        keep_freed_memory()
    processes.require_equal(
        run.is_dir(),  # the main process has made it, to lock it
        f"does not see {run} as the main process does; on several machines, it must be on a "
        "shared file system",
    )
    with processes.main_first():
        data = prepare(config)
    processes.require_equal(
        (data.checksum("train"), data.tokenizer.checksum),
        "has prepared different data than the main process; processes on several machines need "
        "data.store and the corpora on a shared file system, under equal paths",
    )
    config = with_paths(config)  # absolute paths: the run can be used from any working directory
    model = _build_model(config, run, data)
    examples = examples_of(config, data)
    on_gpu = accelerator.device.type == "cuda"
    cores = usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    stream = TrainingData(
        examples,
        batch_tokens=config.training.batch_tokens,
        micro_batch_tokens=config.training.micro_batch_tokens,
        seed=config.training.seed,
        process=processes.index,
        num_processes=processes.count,
        pin_memory=on_gpu,
        # On a CPU, training is so slow that a thread is enough.
        num_workers=max(1, min(MAX_WORKERS, cores - 1)) if on_gpu and examples.needs_workers else 0,
    )
    evaluate = validator(config, data, processes)
    updater = Updater(model, config.training, accelerator, precision)
    trainer = Trainer(config, run, data.tokenizer, stream, evaluate, updater, processes)
    was_finished = is_finished(config.training, trainer.state)
    if processes.is_main and not was_finished:
        record_start(
            run,
            run=str(run.absolute()),
            step=trainer.state.step,
            device=describe_device(accelerator.device),
            precision=precision,
            processes=processes.count,
            threads=torch.get_num_threads(),
            seed=config.training.seed,
            data=data.manifest,
        )
        write_file(run / "recipe.yaml", to_yaml(config))
        data.tokenizer.save(run)
    unit = {"language_model": "tokens", "classification": "texts"}.get(config.task, "pairs")
    facts = data.facts("train")
    logger.info(
        "%s: %.1fM parameters, %s training %s, %s on %s (processes: %d, threads per process: %d)",
        run,
        model.num_parameters() / 1e6,
        f"{facts['tokens' if unit == 'tokens' else 'pairs']:,}",
        unit,
        precision,
        accelerator.device.type,
        processes.count,
        torch.get_num_threads(),
    )
    try:
        state = trainer.train()
    except SystemExit:  # stopped by a signal, after saving
        # A launcher sends SIGTERM to the other processes when the first process has ended.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise
    finally:
        for tracker in accelerator.trackers:
            tracker.finish()
    if not was_finished:
        logger.info(summary(config, run, state))
    return state


def _precision(training: TrainingConfig, processes: Processes) -> Precision:
    """Return one precision for all processes: the first in DTYPES that any of them chooses."""
    requested, device = training.precision, torch.device(processes.device)
    resolved = processes.all_gather([resolve_precision(requested, device)])
    if device.type == "cuda":  # remaining fp32 products use TF32, unless fp32 is requested
        torch.set_float32_matmul_precision("highest" if requested == "fp32" else "high")
    return next(precision for precision in DTYPES if precision in resolved)


def _build_model(config: Config, run: Path, data: PreparedData) -> Network:
    set_seed(config.training.seed)
    model = build_model(config, data.tokenizer)
    init_from = config.training.init_from
    if init_from and not RunDirectory(run).checkpoints():
        init = find_model(Path(init_from)).resolve()
        logger.info("new run, initialised from %s (%s)", init_from, init.name)
        require_undamaged(init)
        if isinstance(data.tokenizer.target, Labels):
            labels, initial = data.tokenizer.target.model, Tokenizer.load(init).target.model
            if labels != initial:
                raise UserError(
                    f"{init} has the labels {initial.decode()}, but the training data have "
                    f"{labels.decode()}: training.init_from needs the same labels"
                )
        load_weights(model, init, data.tokenizer if config.translates else None)
    if config.training.freeze_embeddings and isinstance(model, Transformer):
        model.source_embedding.requires_grad_(False)
        model.target_embedding.requires_grad_(False)
    model.set_gradient_checkpointing(config.training.gradient_checkpointing)
    return model


def make_accelerator(training: TrainingConfig, run: Path) -> Accelerator:
    """Return the accelerator of a run."""
    if training.tensorboard:
        require_extra("tensorboard", "training.tensorboard=true")
    accelerator = Accelerator(
        # Set explicitly, since Accelerate would read them from the environment: it would add
        # autocast, divide the loss by the number of accumulation steps, and compile the model.
        mixed_precision="no",
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
        dynamo_backend="no",
        # Not static_graph: torch would all-reduce at the end of the first backward pass, which
        # fails within `no_sync`, as in the dry run. Not find_unused_parameters: all parameters
        # have a gradient in every micro-batch.
        kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
        log_with="tensorboard" if training.tensorboard else None,
        project_dir=str(run),
    )
    if training.tensorboard:
        accelerator.init_trackers("tensorboard")
    return accelerator
