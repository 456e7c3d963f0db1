"""How training uses memory: what it keeps, and whether the longest batch fits."""

from __future__ import annotations

import ctypes
import gc
import math
import sys
from collections.abc import Callable

import torch

from seq2seq.data.packing import Batch
from seq2seq.data.stream import TrainingData
from seq2seq.errors import SharedError
from seq2seq.processes import Processes, out_of_memory

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
"""Parameters of glibc's mallopt."""


def keep_freed_memory() -> None:
    """Let the next update reuse this one's memory instead of asking the kernel for it anew.

    glibc returns large blocks as soon as they are free, and every page of the next ones costs a
    fault: about a sixth of the time of an update. Does nothing where there is no glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_TOP_PAD, 64 * 2**20)


def require_memory(
    attempt: Callable[[Batch], None], data: TrainingData, processes: Processes
) -> None:
    """Try the longest batch that may come; raises UserError with the size that would fit.

    attempt: makes an update of one batch that changes nothing.
    """
    size, longest = data.micro_batch_tokens, data.examples.longest
    fault = _try(attempt, data, size)
    while fault and size > longest:
        size = max(longest, size // 2)
        if _try(attempt, data, size) is None:
            break
    else:
        size = 0 if fault else size
    # The process with the least room speaks for all.
    outcomes = processes.all_gather([(size, fault)])
    faults = [fault for _, fault in outcomes if fault]
    if not faults:
        return
    size = min(size for size, _ in outcomes)
    raise SharedError(
        f"training.micro_batch_tokens={data.micro_batch_tokens} does not fit into memory "
        f"({faults[0]}): "
        + (
            f"training.micro_batch_tokens={size} fits, and leaves an update as large as it is"
            if size
            else f"nor does the longest example alone, of {longest} tokens: lower "
            "data.clean.max_len (or model.context) or take a smaller model"
        )
    )


def _try(attempt: Callable[[Batch], None], data: TrainingData, size: int) -> str | None:
    """Return why a batch of `size` tokens on both sides does not fit, or None."""
    # An epoch's last update has up to half as much again, and either side may be the longer.
    share = math.ceil(1.5 * data.batch_tokens * data.examples.source_ratio / data.num_processes)
    try:
        attempt(data.examples.worst(min(size, share)))
        return None
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        reason = str(error).splitlines()[0][:200] if str(error) else "no memory"
    # The failed attempt's tensors hang on the exception, and are free only now.
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return reason
