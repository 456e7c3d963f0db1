"""How many threads make the products of a CPU: chosen by the speed of the work itself.

Threads of one product wait for each other, by spinning. Where another program runs on one of their
cores, all wait for the thread that shares it, and fewer threads can be several times as fast. Small
products gain nothing from many threads either. So the first pieces of work are made with different
numbers of threads, and the fastest number is kept, until the speed falls or cores become free.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import torch

ROUNDS = 4
"""Pieces of work that each number of threads makes in a trial; the first warms it up."""
FALL = 0.75
"""What is left of the speed when a trial is made again."""
RECENT = 8
"""Pieces of work whose median is the speed of today."""
PAUSE, LONGEST_PAUSE = 5.0, 60.0
"""Seconds between trials, doubled by each that changes nothing."""


class OtherLoad:
    """What other programs use of the cores that this process may run on.

    Programs of low priority (nice) do not count, since they make room.
    """

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._cores = (
            self._process.cpu_affinity() if hasattr(psutil.Process, "cpu_affinity") else []
        )
        self._last = self._read()

    def _read(self) -> tuple[float, float]:
        """Return the time, and the seconds of processor time that others have had until now."""
        own, each = self._process.cpu_times(), psutil.cpu_times(percpu=True)
        usable = [core for core in self._cores if core < len(each)] or range(len(each))
        free = ("idle", "iowait", "nice", "guest", "guest_nice")  # guests are in user and nice too
        busy = sum(
            seconds
            for core in usable
            for name, seconds in each[core]._asdict().items()
            if name not in free
        )
        return time.monotonic(), busy - own.user - own.system

    def cores(self) -> float:
        """Return how many cores others have used, on average, since this was asked last."""
        before, self._last = self._last, self._read()
        seconds, used = (now - then for now, then in zip(self._last, before, strict=True))
        return max(0.0, used / seconds) if seconds else 0.0


def candidates(cores: int) -> list[int]:
    """Return the numbers of threads worth trying: all, all but one, and by halves down to 1."""
    halves = [cores >> shift for shift in range(cores.bit_length())]
    return sorted({*halves, max(1, cores - 1)}, reverse=True)


class Chooser:
    """Finds the fastest number of threads for one kind of work."""

    def __init__(
        self, counts: Sequence[int], load: Callable[[], float], clock: Callable[[], float]
    ) -> None:
        """counts: to choose from, the largest first. load: the cores that others use."""
        self._counts, self._load, self._clock = counts, load, clock
        self.count = counts[0]
        self._random = random.Random(0)
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._reference: float | None = None
        """The speed to compare with."""
        self._pause, self._next_trial = PAUSE, 0.0
        self._begin()

    def next_count(self) -> int:
        """Return with how many threads the next piece of work is to be made."""
        return self._plan[-1] if self._plan else self.count

    def record(self, speed: float) -> None:
        """Take note of the speed of the piece of work that was made with `next_count` threads."""
        if self._plan:
            self._speeds[self._plan.pop()].append(speed)
            if not self._plan:
                self._decide()
            return
        self._recent.append(speed)
        if len(self._recent) < RECENT or self._clock() < self._next_trial:
            return
        if self._reference is None:
            self._reference = statistics.median(self._recent)
        fallen = statistics.median(self._recent) < FALL * self._reference
        if fallen or self.count < self._counts[0]:
            self._begin()

    def _begin(self) -> None:
        """Begin a trial of the numbers for which there are cores."""
        free = max(1, self._counts[0] - round(self._load()))
        counts = [count for count in self._counts if count <= free]
        self._speeds: dict[int, list[float]] = {count: [] for count in counts}
        # At random, so that no number meets the same of several pieces that take turns; from the
        # end: the first round is all numbers from the largest down.
        rounds = [self._random.sample(counts, len(counts)) for _ in range(ROUNDS - 1)]
        self._plan = [count for each in rounds for count in each] + counts[::-1]
        if len(counts) == 1:
            self._plan = []
            self._decide()

    def _decide(self) -> None:
        """End a trial: keep the fastest number."""
        before = self.count
        medians = {
            count: statistics.median(speeds[1:]) for count, speeds in self._speeds.items() if speeds
        }
        self.count = max(medians, key=lambda count: medians[count], default=min(self._speeds))
        self._reference = medians.get(self.count)
        self._pause = min(LONGEST_PAUSE, 2 * self._pause) if self.count == before else PAUSE
        self._next_trial = self._clock() + self._pause
        self._recent.clear()


class Threads:
    """A chooser for each kind of work of this process."""

    def __init__(self) -> None:
        self._load = OtherLoad()
        self._counts: list[int] = []
        self._choosers: dict[str, Chooser] = {}

    @contextmanager
    def timed(self, kind: str, work: float) -> Iterator[None]:
        """Make a piece of work with the number of threads that is best for its kind."""
        import torch  # loaded by now, and not before the command is known

        self._counts = self._counts or candidates(torch.get_num_threads())
        if kind not in self._choosers:
            self._choosers[kind] = Chooser(self._counts, self._load.cores, time.monotonic)
        chooser = self._choosers[kind]
        count = chooser.next_count()
        if count != torch.get_num_threads():
            torch.set_num_threads(count)
        start = time.perf_counter()
        yield
        chooser.record(work / (time.perf_counter() - start))


_threads: Threads | None = None
"""torch has one number of threads for the whole process."""


def choose_threads() -> None:
    """Let `timed` choose threads in this process, unless a variable says how many.

    Called before torch is loaded, it learns meanwhile what else the machine does.
    """
    global _threads
    if not {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & set(os.environ):
        _threads = Threads()


def timed(kind: str, work: float, device: torch.device) -> AbstractContextManager[None]:
    """Make a piece of work, on a CPU with the number of threads that is best for its kind.

    work: its size, so that pieces can be compared. The number stays as it is unless
    `choose_threads` was called.
    """
    if _threads is None or device.type != "cpu":
        return nullcontext()
    return _threads.timed(kind, work)
