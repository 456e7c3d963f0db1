"""Sizes of updates and micro-batches: measured where the recipe says `auto`, and tried out."""

from __future__ import annotations

import gc
import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from seq2seq.config import AUTO, TrainingConfig
from seq2seq.data.packing import Batch
from seq2seq.data.training_data import TrainingData
from seq2seq.errors import SharedError, UserError
from seq2seq.machine.memory import out_of_memory
from seq2seq.model.saved import describe_model
from seq2seq.processes import Processes
from seq2seq.training.run_directory import RunDirectory
from seq2seq.training.update import Updater

SIZES = tuple(1024 * 2**i for i in range(8))
"""Micro-batches that are tried, in tokens, as far as an update has so many."""
REPETITIONS = 3
"""Of each measurement."""
FAST_ENOUGH = 0.95
"""Share of the best speed that the smallest micro-batch chosen has."""
STEP_SHARE = 0.25
"""Of the time of an update, what the optimisers may take at most."""
SMALLEST, LARGEST = 2048, 25_000
"""Of an update; the largest is the paper's."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Seconds:
    """Times on this machine."""

    per_token: dict[int, float]
    """Of forward and backward pass for a label, by the size of the micro-batch."""
    step: float
    """Of the optimisers, once per update."""


def with_measured_batches(
    training: TrainingConfig,
    run: Path,
    data: TrainingData,
    make_trial: Callable[[], Updater],
    processes: Processes,
) -> TrainingConfig:
    """Replace `auto` by what is measured on this machine, or what the run was started with.

    data: of any batch size. make_trial: called for a measurement, returns an updater of a copy of
    the model; nothing is changed.
    """
    automatic = [key for key in ("batch_tokens", "micro_batch_tokens")
                 if getattr(training, key) == AUTO]  # fmt: skip
    for checkpoint in reversed(RunDirectory(run).checkpoints()):
        with suppress(UserError):  # the run resumes from one that is not damaged
            before = describe_model(checkpoint)[0].training
            return replace(training, **{key: getattr(before, key) for key in automatic})
    logger.info("measuring the speed of %s: some ten seconds", " and ".join(automatic))
    seconds = measure(data, make_trial(), training.batch_tokens)
    micro = training.micro_batch_tokens or micro_batch(seconds)
    update = training.batch_tokens or update_size(seconds, processes.count)
    # All processes need the same sizes, and the one with the least memory decides.
    sizes = processes.all_gather([(micro, update)])
    micro, update = min(each for each, _ in sizes), max(each for _, each in sizes)
    found = {"batch_tokens": update, "micro_batch_tokens": micro}
    logger.info("measured: %s", ", ".join(f"training.{key}={found[key]}" for key in automatic))
    return replace(training, batch_tokens=update, micro_batch_tokens=micro)


def micro_batch(seconds: Seconds) -> int:
    """Return the smallest micro-batch that is nearly as fast per token as the fastest."""
    enough = min(seconds.per_token.values()) / FAST_ENOUGH
    return min(size for size, time in seconds.per_token.items() if time <= enough)


def update_size(seconds: Seconds, num_processes: int) -> int:
    """Return the smallest update of which the optimisers take only their share."""
    per_token = min(seconds.per_token.values()) / num_processes
    needed = seconds.step * (1 - STEP_SHARE) / STEP_SHARE / per_token
    return min(LARGEST, max(SMALLEST, math.ceil(needed / 256) * 256))


def measure(data: TrainingData, trial: Updater, batch_tokens: int) -> Seconds:
    """Measure micro-batches of growing size that fit into memory, and a step.

    batch_tokens: no micro-batch is larger; AUTO: LARGEST.
    """
    per_token: dict[int, float] = {}
    step = math.inf
    for size in SIZES:
        if per_token and size > (batch_tokens or LARGEST):
            break
        try:
            if trial.device.type != "cpu" and size > data.examples.longest:
                trial.dry_run(data.examples.worst(size))  # for the memory that it takes
            batch = _batch(data, size)
            whole = _fastest(trial, partial(trial.dry_run, batch))
            step = min(step, _fastest(trial, trial.dry_step))
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error) or not per_token:
                raise
            break
        per_token[size] = max(1e-9, (whole - step) / batch.num_labels)
        times = list(per_token.values())
        if len(times) > 2 and min(times[-2:]) > times[-3] * FAST_ENOUGH:
            break
    return Seconds(per_token, step)


def _batch(data: TrainingData, size: int) -> Batch:
    """Return the largest micro-batch of a few of this size."""
    stream = TrainingData(
        data.examples, batch_tokens=4 * size, micro_batch_tokens=size, seed=data.seed,
        by_length=data.by_length,
    )  # fmt: skip
    return max(next(stream.epoch(0)).batches, key=lambda batch: batch.num_labels)


def _fastest(trial: Updater, run: Callable[[], None]) -> float:
    """Return the shortest of several times: other programs only make it longer."""
    best = math.inf
    for _ in range(REPETITIONS):
        trial.synchronize()
        start = time.perf_counter()
        run()
        trial.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def require_memory(updater: Updater, data: TrainingData, processes: Processes) -> None:
    """Do a dry run of the largest batch; raises SharedError with a batch size that fits."""
    size, longest, problem = data.micro_batch_tokens, data.examples.longest, None
    while size and (reason := _dry_run(updater, data, size)):
        problem = problem or reason
        size = max(longest, size // 2) if size > longest else 0
    # The process with the least memory decides.
    outcomes = processes.all_gather([(size, problem)])
    problems = [problem for _, problem in outcomes if problem]
    if not problems:
        return
    size = min(size for size, _ in outcomes)
    raise SharedError(
        f"training.micro_batch_tokens={data.micro_batch_tokens} does not fit into memory "
        f"({problems[0]}): "
        + (
            f"training.micro_batch_tokens={size} fits, and does not change the size of an update"
            if size
            else f"the longest example alone, of {longest} tokens, does not fit either; lower "
            "data.clean.max_len (or model.context) or use a smaller model"
        )
    )


def _dry_run(updater: Updater, data: TrainingData, size: int) -> str | None:
    """Return why a batch of `size` tokens on both sides does not fit, or None."""
    # The last update of an epoch may be 1.5 times as large, and either side may be the longer.
    share = math.ceil(1.5 * data.batch_tokens * data.examples.source_ratio / data.num_processes)
    try:
        updater.dry_run(data.examples.worst(min(size, share)))
        return None
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        reason = str(error).splitlines()[0][:200] if str(error) else "no memory"
    # The exception held the tensors of the failed run until here.
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return reason
