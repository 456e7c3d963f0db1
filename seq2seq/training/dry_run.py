"""Check before training that the largest batch fits into memory."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable

import torch

from seq2seq.data.packing import Batch
from seq2seq.data.training_data import TrainingData
from seq2seq.errors import SharedError
from seq2seq.machine.memory import out_of_memory
from seq2seq.processes import Processes


def require_memory(
    dry_run: Callable[[Batch], None], data: TrainingData, processes: Processes
) -> None:
    """Do a memory dry run of the largest batch; raises UserError with a batch size that fits.

    dry_run: makes an update of one batch that changes nothing.
    """
    size, longest, problem = data.micro_batch_tokens, data.examples.longest, None
    while size and (reason := _try(dry_run, data, size)):
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


def _try(dry_run: Callable[[Batch], None], data: TrainingData, size: int) -> str | None:
    """Return why a batch of `size` tokens on both sides does not fit, or None."""
    # The last update of an epoch may be 1.5 times as large, and either side may be the longer.
    share = math.ceil(1.5 * data.batch_tokens * data.examples.source_ratio / data.num_processes)
    try:
        dry_run(data.examples.worst(min(size, share)))
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
