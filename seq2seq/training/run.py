"""Set up and run the training of a recipe."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import (
    DistributedDataParallelKwargs,
    GradientAccumulationPlugin,
    set_seed,
)

from seq2seq.config import AUTO, Config, TrainingConfig, to_yaml, with_paths
from seq2seq.data.examples import Examples
from seq2seq.data.prepared import PreparedData
from seq2seq.data.training_data import TrainingData
from seq2seq.extras import require_extra
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
from seq2seq.machine.processor import describe_device
from seq2seq.machine.threads import keep_threads
from seq2seq.model.attention import exclude_from_compilation, needs_rows
from seq2seq.model.directory import load_weights, require_undamaged
from seq2seq.model.saved import find_model
from seq2seq.model.transformer import Network
from seq2seq.processes import Processes, unwound_by_sigterm
from seq2seq.task import Task, load_task
from seq2seq.training.batch_size import with_measured_batches
from seq2seq.training.checkpoint import RunState
from seq2seq.training.log import summary
from seq2seq.training.records import last_start, record_start
from seq2seq.training.run_directory import RunDirectory, locked
from seq2seq.training.trainer import Trainer
from seq2seq.training.update import Updater

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
    device = torch.device(processes.device)
    resolved = processes.all_gather([resolve_precision(training.precision, device)])
    precision = common_precision(resolved)
    allow_tf32(training.precision, device)
    if training.precision == "auto":
        warn_of_precision(precision, device)
    elif precision == "fp16" and device.type == "cpu":
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
    config = with_paths(config)  # the run finds its data from any working directory
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
        task.require_initial(data.tokenizer, base)
        load_weights(model, base)
    model.gradient_checkpointing = training.gradient_checkpointing
    if training.compile:
        keep_threads()  # torch.compile recompiles for each number of threads
        compile_layers(model, accelerator.device)
    examples = task.examples(config, data)
    stream = _training_data(config, examples, processes, precision)
    if AUTO in (training.batch_tokens, training.micro_batch_tokens):
        training = with_measured_batches(
            training,
            run,
            stream,
            lambda: Updater(deepcopy(model), config.training, accelerator, precision),
            processes,
        )
        accelerator.free_memory()
        config = replace(config, training=training)
        stream = _training_data(config, examples, processes, precision)
    evaluate = task.evaluator(config, data, split="dev", processes=processes, validation=True)
    logger.info("validations on the development set: %s", evaluate.extent())
    _log_updates(config, stream, precision, accelerator.device.type)
    updater = Updater(model, training, accelerator, precision)
    trainer = Trainer(config, run, data.tokenizer, stream, evaluate, updater, processes)
    if processes.is_main:
        run.mkdir(parents=True, exist_ok=True)
        if not trainer.is_finished:
            _record_start(run, config, data, updater, trainer.state.step)
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
        task.finish(RunDirectory(run).linked_models())
    if not was_finished:
        logger.info(summary(config, run, state))
    return state


def _record_start(
    run: Path, config: Config, data: PreparedData, updater: Updater, step: int
) -> None:
    """Record a start of the run; warn if it resumes in another precision."""
    before = last_start(run).get("precision")
    if step and before not in (None, updater.precision):
        logger.warning(
            "%s was trained in %s so far, and resumes in %s because of this machine or the recipe",
            run,
            before,
            updater.precision,
        )
    record_start(
        run,
        run=str(run.absolute()),
        step=step,
        device=describe_device(updater.device),
        precision=updater.precision,
        processes=updater.accelerator.num_processes,
        threads=torch.get_num_threads(),
        seed=config.training.seed,
        data=data.manifest,
    )


def _finish_trackers(accelerator: Accelerator) -> None:
    for tracker in accelerator.trackers:
        tracker.finish()


def _training_data(
    config: Config, examples: Examples, processes: Processes, precision: Precision
) -> TrainingData:
    training, model, device = config.training, config.model, torch.device(processes.device)
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
        "batch: %s target tokens per update = about %.1f micro-batches on %s",
        f"{training.batch_tokens:,}",
        stream.batches_per_update(),
        "1 process" if stream.num_processes == 1 else f"each of {stream.num_processes} processes",
    )


def make_accelerator(training: TrainingConfig, run: Path, precision: Precision) -> Accelerator:
    """Return the accelerator of a run; warns of settings that the recipe overrides."""
    if training.tensorboard:
        require_extra("tensorboard", "training.tensorboard=true")
    _warn_of_overridden(training, precision)
    accelerator = Accelerator(
        # Explicit, since Accelerate would read them from the environment: the updater has its own
        # autocast, the loss would be divided by the number of steps, and the model compiled.
        mixed_precision="no",
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
        dynamo_backend="no",
        # Not static_graph: torch exchanges at the end of the first backward pass then, which fails
        # if that is within `no_sync`, as the dry run's is. Every parameter has a gradient in every
        # micro-batch. Buffers are not set: no module has any, and torch has renamed the argument.
        kwargs_handlers=[
            DistributedDataParallelKwargs(
                find_unused_parameters=False,
                gradient_as_bucket_view=True,
                static_graph=False,
            )
        ],
        log_with="tensorboard" if training.tensorboard else None,
        project_dir=str(run),
    )
    if training.tensorboard:
        accelerator.init_trackers("tensorboard")
    return accelerator


def _warn_of_overridden(training: TrainingConfig, precision: Precision) -> None:
    """Warn of settings of `accelerate launch` that differ from what the recipe says."""
    asked = training.precision
    here = "" if asked == precision else f" ({precision} here)"
    keys = {
        "MIXED_PRECISION": (["no", precision], f"training.precision={asked}{here}"),
        "GRADIENT_ACCUMULATION_STEPS": (
            ["1"],
            f"training.batch_tokens={training.batch_tokens} and "
            f"training.micro_batch_tokens={training.micro_batch_tokens}",
        ),
        "DYNAMO_BACKEND": (
            ["no", *(["inductor"] if training.compile else [])],
            f"training.compile={str(training.compile).lower()}",
        ),
    }
    for name, (fine, key) in keys.items():
        value = os.environ.get(f"ACCELERATE_{name}", "").lower()
        if value and value not in fine:  # "no" and "1" are the launcher's defaults
            logger.warning(
                "ACCELERATE_%s=%s is overridden by %s of the recipe; change that instead",
                name,
                value,
                key,
            )


def compile_layers(
    model: Network, device: torch.device, backend: str | Callable[..., Any] = "inductor"
) -> None:
    """Compile each layer, except `attend`; log a warning if that does not work.

    Layers share compiled code, which is independent of the number of tokens; encoder and decoder,
    training and evaluation each have their own. backend: see torch.compile.
    """
    try:
        _try_out(device, backend)
    except Exception as error:  # no compiler, no headers, no such Python: it has many ways to fail
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        logger.warning(
            "torch.compile does not work here (%s): the run goes on uncompiled, which changes only "
            "its speed; training.compile=false silences this warning",
            reason,
        )
        return
    exclude_from_compilation()
    # Probabilities of dropout are constants; as variables they would be compiled for twice.
    torch._dynamo.config.specialize_float = True
    for stack in model.stacks():
        for layer in stack.each_layer():
            layer.compile(dynamic=True, backend=backend)


def _try_out(device: torch.device, backend: str | Callable[..., Any]) -> None:
    """Compile a small product, forward and backward."""
    product = torch.compile(torch.nn.Linear(2, 2, device=device), backend=backend)
    product(torch.ones(3, 2, device=device)).sum().backward()
