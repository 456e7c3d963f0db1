"""Number of threads on a CPU, adapted to the cores that other programs leave free.

The threads of a matrix multiplication wait for each other by spinning. If another program occupies
one of the cores, all threads wait. Fewer threads are then faster, but round sums differently.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import torch

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that fix the number of threads."""
CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
"""CPU limit of a container's cgroup: microseconds of CPU time per period, and the period."""
INTERVAL = 1.0
"""Minimum seconds over which the load of other programs is averaged."""


def allowed_cores() -> int:
    """Return the number of cores on which this process may be scheduled."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_cores() -> int:
    """Return the number of cores that this process may use at once, within a container's limit."""
    try:
        quota, period = CPU_LIMIT.read_text().split()
        return max(1, min(allowed_cores(), round(int(quota) / int(period))))
    except (OSError, ValueError):  # no container, or `max`
        return allowed_cores()


def fixed_threads() -> int | None:
    """Return the number of threads set by the environment, or None."""
    # OpenMP also accepts a list, with a number per nesting level.
    values = (os.environ.get(variable, "").partition(",")[0] for variable in VARIABLES)
    return next((int(value) for value in values if value.isdigit() and int(value)), None)


class AdaptiveThreads:
    """Keeps torch's number of threads at the number of cores that other programs leave free."""

    def __init__(self) -> None:
        self.maximum: int | None = None
        """torch's initial number of threads. None before the first call."""
        self._time, self._used = time.monotonic(), _used_by_others()

    def adapt(self) -> None:
        """Measure the load of other programs and set the number of threads."""
        import torch  # not at the top: --help should not wait for it

        self.maximum = self.maximum or torch.get_num_threads()
        if (seconds := time.monotonic() - self._time) < INTERVAL:
            return
        before, self._used = self._used, _used_by_others()
        self._time += seconds
        free = round(allowed_cores() - (self._used - before) / seconds)
        count = max(1, min(self.maximum, usable_cores(), free))
        if torch.get_num_threads() != count:
            torch.set_num_threads(count)


def _used_by_others() -> float:
    """Return the CPU seconds that other programs have used so far on the cores of this process.

    Programs of lower priority (nice) are ignored: they yield. Returns 0 if the system does not
    report its load.
    """
    free = {"idle", "iowait", "steal", "guest", "guest_nice"}  # user includes guests
    try:
        process, cores = psutil.Process(), psutil.cpu_times(percpu=True)
        if process.nice() <= 0:
            free.add("nice")
        if hasattr(process, "cpu_affinity"):
            cores = [cores[i] for i in process.cpu_affinity() if i < len(cores)]
        ours = sum(process.cpu_times()[:4])  # this process and its children
    except (OSError, psutil.Error):
        return 0.0
    fields = [item for core in cores for item in core._asdict().items()]
    return sum(seconds for name, seconds in fields if name not in free) - ours


_threads: AdaptiveThreads | None = None
"""State of the process: torch has a single number of threads."""


def choose_threads() -> None:
    """Enable `adapt_threads`, unless an environment variable fixes the number of threads.

    If called before torch is imported, the load is measured during the import.
    """
    global _threads
    _threads = AdaptiveThreads() if fixed_threads() is None else None


def keep_threads() -> None:
    """Disable `adapt_threads` and restore torch's default number of threads."""
    global _threads
    if _threads is not None and _threads.maximum:
        import torch

        torch.set_num_threads(_threads.maximum)
    _threads = None


def adapt_threads(device: torch.device) -> None:
    """Adapt the number of threads to the load of other programs, before work on a CPU.

    Does nothing unless `choose_threads` was called.
    """
    if _threads is not None and device.type == "cpu":
        _threads.adapt()
