"""The number of threads on a CPU: as many as other programs leave cores free.

The threads of a matrix product wait for each other by spinning. If another program runs on one of
their cores, all of them wait, and fewer threads are several times as fast.
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
"""Microseconds of CPU time in each period, and the period, of a container's cgroup."""
INTERVAL = 1.0
"""Minimum number of seconds over which the load of other programs is averaged."""


def own_cores() -> int:
    """Return the number of cores on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_cores() -> int:
    """Return the number of cores that this process may use at once: a container has a limit."""
    try:
        quota, period = CPU_LIMIT.read_text().split()
        return max(1, min(own_cores(), round(int(quota) / int(period))))
    except (OSError, ValueError):  # no container, or `max`
        return own_cores()


def fixed_threads() -> int | None:
    """Return the number of threads that the environment fixes, if any."""
    # OpenMP also takes a list: the numbers of nested levels.
    values = (os.environ.get(variable, "").partition(",")[0] for variable in VARIABLES)
    return next((int(value) for value in values if value.isdigit() and int(value)), None)


class AdaptiveThreads:
    """Keeps torch's number of threads at the number of cores that other programs leave free."""

    def __init__(self) -> None:
        self.most: int | None = None
        """Number of threads that torch started with; None before the first call."""
        self._time, self._used = time.monotonic(), _used_by_others()

    def adapt(self) -> None:
        """Measure the load of other programs and set the number of threads."""
        import torch  # imported late, so that --help does not wait for it

        self.most = self.most or torch.get_num_threads()
        if (seconds := time.monotonic() - self._time) < INTERVAL:
            return
        before, self._used = self._used, _used_by_others()
        self._time += seconds
        free = round(own_cores() - (self._used - before) / seconds)
        count = max(1, min(self.most, usable_cores(), free))
        if torch.get_num_threads() != count:
            torch.set_num_threads(count)


def _used_by_others() -> float:
    """Return the seconds that other programs have used so far on the cores of this process.

    Programs of lower priority (nice) do not count, since they yield. A system that does not report
    its load counts as idle.
    """
    free = {"idle", "iowait", "steal", "guest", "guest_nice"}  # guests are in user, too
    try:
        process, cores = psutil.Process(), psutil.cpu_times(percpu=True)
        if process.nice() <= 0:
            free.add("nice")
        if hasattr(process, "cpu_affinity"):
            cores = [cores[i] for i in process.cpu_affinity() if i < len(cores)]
        own = sum(process.cpu_times()[:4])  # of this process and its children
    except (OSError, psutil.Error):
        return 0.0
    fields = [item for core in cores for item in core._asdict().items()]
    return sum(seconds for name, seconds in fields if name not in free) - own


_threads: AdaptiveThreads | None = None
"""torch has one number of threads for the whole process."""


def choose_threads() -> None:
    """Let `adapt_threads` set the number of threads, unless a variable fixes it.

    If called before torch is imported, the load is measured during the import.
    """
    global _threads
    _threads = AdaptiveThreads() if fixed_threads() is None else None


def keep_threads() -> None:
    """Use torch's default number of threads from here on."""
    global _threads
    if _threads is not None and _threads.most:
        import torch

        torch.set_num_threads(_threads.most)
    _threads = None


def adapt_threads(device: torch.device) -> None:
    """Adapt the number of threads to the load of other programs, before work on a CPU.

    The number stays as it is unless `choose_threads` was called.
    """
    if _threads is not None and device.type == "cpu":
        _threads.adapt()
