"""Set up and run the training of a recipe."""

from __future__ import annotations

import logging
import signal
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from seq2seq.config import AUTO, Config, to_yaml
from seq2seq.data.prepared import PreparedData
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.training_data import Examples, TrainingData
from seq2seq.files import write_text
from seq2seq.machine.memory import keep_freed_memory
from seq2seq.machine.precision import (
    DTYPES,
    Precision,
    allow_tf32,
    common_precision,
    resolve_precision,
    warn_of_precision,
)
from seq2seq.machine.threads import keep_threads
from seq2seq.model.attention import needs_rows
from seq2seq.model.directory import load_weights, require_undamaged
from seq2seq.model.network import Network
from seq2seq.model.saved import find_model
from seq2seq.processes import Processes
from seq2seq.task import Task, load_task
from seq2seq.training.accelerator import make_accelerator
from seq2seq.training.batch_size import with_measured_batches
from seq2seq.training.compile import compile_layers
from seq2seq.training.lock import locked
from seq2seq.training.provenance import record_start
from seq2seq.training.run_directory import RunDirectory
from seq2seq.training.signals import unwound_by_sigterm
from seq2seq.training.state import RunState
from seq2seq.training.summary import summary
from seq2seq.training.trainer import Trainer
from seq2seq.training.updater import Updater

logger = logging.getLogger(__name__)


def train(config: Config, run: Path) -> RunState:
    """Train the recipe in the directory `run`, or resume the run there."""
    task = load_task(config.task)
    processes = Processes.join()
    if not processes.is_main:
        logging.getLogger("seq2seq").setLevel(logging.ERROR)
    try:
        with locked(run, processes):
            state = _train(config, run, task, processes)
    except SystemExit as stop:  # stopped by a signal
        processes.exit(int(stop.code or 0))
        raise
    processes.exit()
    return state


def _train(config: Config, run: Path, task: Task, processes: Processes) -> RunState:
    training = config.training
    if training.init_from and not RunDirectory(run).checkpoints():
        base = find_model(Path(training.init_from)).resolve()
        logger.info("a new run, initialised from %s, %s", training.init_from, base.name)
    resolved = processes.all_gather([resolve_precision(training.precision, processes.device)])
    precision = common_precision(resolved)
    allow_tf32(training.precision, processes.device)
    if training.precision == "auto":
        warn_of_precision(precision, processes.device)
    elif precision == "fp16" and processes.device.type == "cpu":
        logger.warning("training.precision=fp16 is slow on a CPU: auto chooses the fastest one")
    accelerator = make_accelerator(config.training, run, precision)
    if accelerator.device.type == "cpu":
        keep_freed_memory()
    processes.require_shared(run)
    with processes.main_first():
        data = task.prepare(config)
    processes.require_equal(
        (data.checksum("train"), data.tokenizer.checksum),
        "has prepared different data than the main process; processes on several machines need "
        "data.store and the corpora on a shared file system, at the same path",
    )
    with unwound_by_sigterm():  # a preparation resumes, however it ends
        return _train_on(data, config, run, task, processes, accelerator, precision)


def _train_on(
    data: PreparedData,
    config: Config,
    run: Path,
    task: Task,
    processes: Processes,
    accelerator: Accelerator,
    precision: Precision,
) -> RunState:
    training = config.training
    set_seed(training.seed)
    model = task.build_model(config, data.tokenizer)
    if training.init_from and not RunDirectory(run).checkpoints():
        require_undamaged(base := find_model(Path(training.init_from)))
        task.require_same(data.tokenizer, Tokenizer.load(base), base)
        load_weights(model, base)
    model.gradient_checkpointing = training.gradient_checkpointing
    if training.compile:
        keep_threads()  # torch.compile recompiles for each number of threads
        compile_layers(model, accelerator.device)
    examples = task.examples(config, data)
    config = _with_measured_batches(config, run, model, examples, processes, accelerator, precision)
    training = config.training
    stream = _training_data(config, examples, processes, precision)
    evaluate = task.evaluator(config, data, split="dev", processes=processes, validation=True)
    logger.info("validations on the development set: %s", evaluate.extent())
    _log_updates(config, stream, precision, processes.device.type)
    trainer = Trainer(
        config,
        run,
        model,
        data.tokenizer,
        stream,
        evaluate,
        accelerator,
        processes,
        precision,
    )
    if processes.is_main:
        run.mkdir(parents=True, exist_ok=True)
        if not trainer.is_finished:
            record_start(run, config, data, accelerator, precision, trainer.state.step)
        write_text(run / "recipe.yaml", to_yaml(config))
        data.tokenizer.save(run)
    facts = data.facts("train")
    logger.info(
        "%s: %.1fM parameters, %d training %s, %s on %s, %d thread(s) in %d process(es)",
        run,
        model.num_parameters() / 1e6,
        facts["tokens" if task.unit == "tokens" else "pairs"],
        task.unit,
        precision,
        accelerator.device.type,
        torch.get_num_threads(),
        accelerator.num_processes,
    )
    was_finished = trainer.is_finished
    try:
        state = trainer.train()
    except SystemExit:  # stopped by a signal, after saving
        # A launcher sends another one when the first process has ended.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _finish_trackers(accelerator)
        raise
    _finish_trackers(accelerator)
    if processes.is_main:
        task.finish(data, RunDirectory(run).linked_models(), str(accelerator.device))
    if not was_finished:
        logger.info(summary(config, run, state))
    return state


def _finish_trackers(accelerator: Accelerator) -> None:
    for tracker in accelerator.trackers:
        tracker.finish()


def _with_measured_batches(
    config: Config,
    run: Path,
    model: Network,
    examples: Examples,
    processes: Processes,
    accelerator: Accelerator,
    precision: Precision,
) -> Config:
    """Return the recipe with measured sizes of updates and micro-batches, where it says so."""
    if AUTO not in (config.training.batch_tokens, config.training.micro_batch_tokens):
        return config
    data = _training_data(config, examples, processes, precision)

    def make_trial() -> Updater:
        return Updater(deepcopy(model), config.training, accelerator, precision)

    training = with_measured_batches(config.training, run, data, make_trial, processes)
    accelerator.free_memory()
    return replace(config, training=training)


def _training_data(
    config: Config, examples: Examples, processes: Processes, precision: Precision
) -> TrainingData:
    training, model, device = config.training, config.model, processes.device
    width = model.dim // model.num_heads
    return TrainingData(
        examples,
        batch_tokens=training.batch_tokens,
        micro_batch_tokens=training.micro_batch_tokens,
        seed=training.seed,
        process=processes.index,
        num_processes=processes.count,
        pin_memory=device.type == "cuda",
        by_length=needs_rows(device, DTYPES[precision], width, model.attention_dropout),
    )


def _log_updates(config: Config, stream: TrainingData, precision: Precision, device: str) -> None:
    """Log what an update is made of, and warn of a slow one."""
    training, dropout = config.training, config.model.attention_dropout
    if device == "cuda" and precision != "fp32" and dropout:
        logger.warning(
            "model.attention_dropout=%s: flash attention has no dropout, so that sentences are "
            "padded for attention, which is slower; 0 is the paper's",
            dropout,
        )
    logger.info(
        "each update: up to %d target tokens, in about %.1f micro-batches of up to %d tokens of "
        "the longer side on each of %d process(es)",
        training.batch_tokens,
        stream.batches_per_update(),
        training.micro_batch_tokens,
        stream.num_processes,
    )
