"""The number of threads on a CPU: chosen by the measured speed of the work itself.

The threads of a matrix multiplication wait for each other by spinning. If another program runs on
one of their cores, all of them wait for the thread that shares it, and fewer threads can be several
times as fast. Small multiplications do not gain from many threads either. So the first steps of a
command run with different numbers of threads, and the fastest number is kept. It is tested again
when the speed drops, when cores become free, and occasionally without a reason.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import torch

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that fix the number of threads."""
ROUNDS = 3
"""Timed steps of each of two numbers of threads before they are compared by their medians."""
CLEAR = 1.4
"""A ratio of speeds that decides a comparison after the first timed step."""
GAIN = 1.03
"""The speed-up at which another number of threads replaces the current one."""
DROP = 0.75
"""The fraction of the reference speed below which the number of threads is tested again."""
RECENT = 8
"""Steps whose median is the recent speed."""
PAUSE, LONGEST_PAUSE = 5.0, 60.0
"""Seconds between tests; doubled by each test that changes nothing."""
ROUTINE = 240.0
"""Seconds after a pause at which a test runs without a reason: the last result may be wrong."""
MAX_COST = 0.05
"""The fraction of the time that tests may take."""


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_fixed_by() -> str | None:
    """Return the variable that fixes the number of threads, with its value."""
    found = (f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ)
    return next(found, None)


def fixed_threads() -> int | None:
    """Return the number of threads that the environment fixes, if it is a number."""
    values = (os.environ.get(variable, "") for variable in VARIABLES)
    return next((int(value) for value in values if value.isdigit() and int(value)), None)


class OtherLoad:
    """The load of other programs on the cores that this process may use.

    Programs of lower priority (nice) do not count, since they yield. A system that does not report
    its load counts as idle.
    """

    def __init__(self) -> None:
        self._cores: list[int] = []
        self._free = {"idle", "iowait", "steal", "guest", "guest_nice"}  # guests are in user, too
        try:
            process = psutil.Process()
            if hasattr(process, "cpu_affinity"):
                self._cores = process.cpu_affinity()
            if process.nice() <= 0:
                self._free.add("nice")
        except (OSError, psutil.Error):
            pass
        self.last = self._read()
        self._load = 0.0

    def cores(self) -> float:
        """Return how many cores other programs use, averaged over the last second or more."""
        if time.monotonic() - self.last[0] >= 1.0:
            before, self.last = self.last, self._read()
            seconds, used = (now - then for now, then in zip(self.last, before, strict=True))
            self._load = max(0.0, used / seconds)
        return self._load

    def _read(self) -> tuple[float, float]:
        """Return the time, and the CPU seconds that other programs have used so far."""
        try:
            own, each = psutil.Process().cpu_times(), psutil.cpu_times(percpu=True)
        except (OSError, psutil.Error):
            return time.monotonic(), 0.0
        usable = [core for core in self._cores if core < len(each)] or range(len(each))
        busy = sum(
            seconds
            for core in usable
            for name, seconds in each[core]._asdict().items()
            if name not in self._free
        )
        children = own.children_user + own.children_system
        return time.monotonic(), busy - own.user - own.system - children


class Chooser:
    """Finds the fastest number of threads for steps of one kind and size.

    Two numbers are compared at a time, the current one and a rival, in alternating steps (A B B A).
    The search starts with all free cores and halves the number as long as that is faster. Later
    tests go up or down in turn, if a core is free for more.
    """

    def __init__(
        self,
        most: int,
        free_cores: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """most: the largest number of threads. free_cores: how many cores others do not use."""
        self._most, self._free_cores, self._clock = most, free_cores, clock
        self.count = self._free()
        """The fastest number of threads so far."""
        self._plan: list[int] = []
        self._speeds: dict[int, list[float]] = {}
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._reference: float | None = None
        self._pause = PAUSE
        self._changed = False
        self._cost = 0.0
        self._next_test = 0.0
        self._up = True
        self._compare(self.count // 2)

    def next_count(self) -> int:
        """Return the number of threads for the next step."""
        return self._plan[-1] if self._plan else self.count

    def record(self, work: float, seconds: float) -> None:
        """Record a step that was run with `next_count` threads."""
        speed = work / seconds
        if self._plan:
            self._cost += seconds
            self._speeds[self._plan.pop()].append(speed)
            self._judge()
            return
        self._recent.append(speed)
        if len(self._recent) < RECENT:
            return
        waited, recent = self._clock() - self._next_test, statistics.median(self._recent)
        if waited < 0:
            return
        self._reference = self._reference or recent
        dropped, free = recent < DROP * self._reference, self._free()
        if not (dropped or free > self.count or waited >= ROUTINE):
            return
        self._changed = dropped and free < self.count
        if self._changed:
            self.count = free
        up, down = min(2 * self.count, free), self.count // 2
        self._up = down == 0 or (up > self.count and not dropped and not self._up)
        self._compare(up if self._up else down)

    def _free(self) -> int:
        return max(1, min(self._most, round(self._free_cores())))

    def _compare(self, rival: int) -> None:
        """Plan the steps that compare the current number of threads with another one."""
        if rival < 1 or rival == self.count:
            self._reference = None  # otherwise an unavoidable drop would count as one for ever
            self._end()
            return
        self._speeds = {self.count: [], rival: []}
        pair = [rival, self.count]
        # Taken from the end. The first step of each number is a warm-up.
        self._plan = [number for i in range(ROUNDS + 1) for number in pair[:: 1 if i % 2 else -1]]

    def _judge(self) -> None:
        """Decide the comparison, if there are enough steps."""
        [rival] = self._speeds.keys() - {self.count}
        ours, theirs = self._speeds[self.count][1:], self._speeds[rival][1:]
        if not ours or len(ours) != len(theirs):
            return
        ratio = statistics.median(theirs) / statistics.median(ours)
        if len(ours) < ROUNDS and 1 / CLEAR < ratio < CLEAR:
            return
        if ratio < GAIN:
            self._reference = statistics.median(ours)
            self._end()
            return
        before, self.count = self.count, rival
        self._reference, self._changed = statistics.median(theirs), True
        upwards = self.count > before
        self._compare(min(2 * self.count, self._free()) if upwards else self.count // 2)

    def _end(self) -> None:
        """End a test and schedule the next one."""
        self._pause = PAUSE if self._changed else min(LONGEST_PAUSE, 2 * self._pause)
        self._next_test = self._clock() + max(self._pause, self._cost / MAX_COST)
        self._cost = 0.0
        self._plan.clear()
        self._recent.clear()


class Threads:
    """The choosers of this process: one for each kind and order of magnitude of step."""

    def __init__(self) -> None:
        self._load = OtherLoad()
        self._most = 0
        self._choosers: dict[tuple[str, int], Chooser] = {}

    @contextmanager
    def timed(self, kind: str, work: int) -> Iterator[None]:
        """Run a step with the best number of threads for it."""
        import torch  # imported late, so that --help does not wait for it

        self._most = self._most or torch.get_num_threads()
        key = kind, work.bit_length() // 2
        if key not in self._choosers:
            self._choosers[key] = Chooser(self._most, lambda: usable_cores() - self._load.cores())
        chooser = self._choosers[key]
        self._load.cores()  # keeps the averaging interval short
        if torch.get_num_threads() != chooser.next_count():
            torch.set_num_threads(chooser.next_count())
        start = time.perf_counter()
        yield
        chooser.record(work, time.perf_counter() - start)
        if torch.get_num_threads() != chooser.count:  # what follows is not part of a test
            torch.set_num_threads(chooser.count)

    def stop(self) -> None:
        """Restore the number of threads that torch started with."""
        if self._most:
            import torch

            torch.set_num_threads(self._most)


chosen_threads: Threads | None = None
"""torch has one number of threads for the whole process."""


def choose_threads() -> None:
    """Let `timed` choose the number of threads in this process, unless something fixes it.

    If called before torch is imported, the load of other programs is measured during the import.
    """
    global chosen_threads
    chosen_threads = Threads() if threads_fixed_by() is None else None


def keep_threads() -> None:
    """Use torch's default number of threads from here on."""
    global chosen_threads
    if chosen_threads is not None:
        chosen_threads.stop()
    chosen_threads = None


def timed(kind: str, work: int, device: torch.device) -> AbstractContextManager[None]:
    """Run a step; on a CPU, with the best number of threads for its kind and size.

    work: the size of the step, in tokens or rows. The number of threads stays as it is unless
    `choose_threads` was called.
    """
    if chosen_threads is None or device.type != "cpu":
        return nullcontext()
    return chosen_threads.timed(kind, work)
