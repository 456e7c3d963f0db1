"""The number of threads is chosen by speed, unless a variable fixes it."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch

from seq2seq.cli import main
from seq2seq.machine import threads
from seq2seq.machine.threads import MAX_COST, PAUSE, RECENT, Chooser, OtherLoad


class Machine:
    """Steps whose speed is a function of the number of threads, and a clock that they advance."""

    def __init__(self, speed: Callable[[int], float], busy: float = 0.0) -> None:
        self.speed, self.busy, self.now = speed, busy, 0.0
        self.used: list[int] = []

    def chooser(self, most: int, cores: int | None = None) -> Chooser:
        return Chooser(most, lambda: (cores or most) - self.busy, lambda: self.now)

    def run(self, chooser: Chooser, steps: int) -> None:
        for _ in range(steps):
            count = chooser.next_count()
            self.used.append(count)
            speed = self.speed(count)
            self.now += 1 / speed
            chooser.record(1, 1 / speed)


@pytest.mark.parametrize("best", [1, 2, 4, 8, 16])
def test_the_fastest_number_is_found(best: int) -> None:
    machine = Machine(lambda count: 100.0 / (1 + abs(math.log2(count / best))))
    chooser = machine.chooser(16)
    machine.run(chooser, 40)
    assert chooser.count == best
    assert set(machine.used) == {16 >> shift for shift in range(5) if 16 >> shift >= best / 2}
    machine.used.clear()
    machine.run(chooser, 200)
    assert set(machine.used) == {best}


def test_the_first_step_of_each_number_is_a_warm_up() -> None:
    warm: set[int] = set()

    def speed(count: int) -> float:
        first = count not in warm
        warm.add(count)
        return 1.0 if first and count == 2 else 10.0 * count

    machine = Machine(speed)
    chooser = machine.chooser(2)
    machine.run(chooser, 8)
    assert chooser.count == 2


def test_close_speeds_are_compared_by_medians() -> None:
    speeds = {2: iter([9, 10, 4, 10] * 99), 1: iter([9, 11, 11, 30] * 99)}
    machine = Machine(lambda count: 10.0)
    chooser = machine.chooser(2)
    for _ in range(8):
        chooser.record(next(speeds[chooser.next_count()]), 1)
    assert chooser.count == 1


def test_start_and_end_of_another_program_are_noticed() -> None:
    machine = Machine(lambda count: 100.0 * count)
    chooser = machine.chooser(2)
    machine.run(chooser, 2000)
    assert chooser.count == 2
    machine.busy, machine.speed = 1.0, lambda count: 100.0 if count == 1 else 20.0
    machine.run(chooser, 2 * RECENT)
    assert chooser.count == 1
    machine.used.clear()
    machine.run(chooser, 20_000)  # no other number is tested as long as no core is free
    assert set(machine.used) == {1}
    machine.busy, machine.speed = 0.0, lambda count: 100.0 * count
    machine.run(chooser, 7000)  # a pause is at most a minute
    assert chooser.count == 2


def test_a_slow_spell_with_one_thread_does_not_keep_it_there() -> None:
    machine = Machine(lambda count: 100.0 if count == 1 else 20.0, busy=1.0)
    chooser = machine.chooser(2)
    machine.run(chooser, 2000)
    machine.speed = lambda count: 60.0 if count == 1 else 20.0  # for good
    machine.run(chooser, 2000)
    assert chooser.count == 1
    machine.busy, machine.speed = 0.0, lambda count: 60.0 * count
    machine.run(chooser, 7000)
    assert chooser.count == 2


def test_a_wrong_first_result_is_corrected() -> None:
    machine = Machine(lambda count: 10.0)  # a burst of other work
    chooser = machine.chooser(2)
    machine.run(chooser, 8)
    assert chooser.count == 2
    machine.speed = lambda count: 130.0 if count == 1 else 100.0
    machine.run(chooser, 60_000)
    assert chooser.count == 1


def test_idle_time_does_not_delay_tests() -> None:
    machine = Machine(lambda count: 100.0 * count)
    chooser = machine.chooser(2)
    machine.run(chooser, 3)
    machine.now += 3600  # the writer of a pipe pauses in the middle of a test
    machine.run(chooser, 3000)
    machine.busy, machine.speed = 1.0, lambda count: 100.0 if count == 1 else 20.0
    machine.run(chooser, 3 * RECENT)
    assert chooser.count == 1


def test_two_threads_of_a_core_count_as_two_cores() -> None:
    machine = Machine(lambda count: 10.0 * count, busy=16.0)
    chooser = machine.chooser(16, cores=32)  # torch uses one thread a core
    machine.run(chooser, 100)
    assert chooser.count == 16


def test_a_load_present_from_the_start_needs_no_test() -> None:
    machine = Machine(lambda count: 100.0 if count == 1 else 2.0, busy=0.97)
    chooser = machine.chooser(2)
    machine.run(chooser, 30)
    assert set(machine.used) == {1}
    machine = Machine(lambda count: 10.0 * count, busy=2.2)
    chooser = machine.chooser(16)
    machine.run(chooser, 100)
    assert chooser.count == 14


@pytest.mark.parametrize("seconds", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("best", [1, 8, 16])
def test_tests_take_little_time(seconds: float, best: int) -> None:
    machine = Machine(lambda count: min(count, best) / max(count, best) / seconds)
    chooser = machine.chooser(16)
    machine.run(chooser, 20_000)
    lost = machine.now - 20_000 * seconds
    assert chooser.count == best
    # The first test, and a twentieth of the time for those that follow.
    assert lost < 100 * seconds + MAX_COST * machine.now


def test_small_variations_of_speed_start_no_test() -> None:
    steps = 0

    def speed(count: int) -> float:
        nonlocal steps
        steps += 1
        return (100.0 if steps % 2 else 85.0) * count

    machine = Machine(speed)
    chooser = machine.chooser(2)
    machine.run(chooser, 8)
    machine.used.clear()
    machine.run(chooser, 20_000)
    assert set(machine.used) == {2} and machine.now > 10 * PAUSE


def test_each_size_has_its_own_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Chooser] = []

    def make(most: int, free_cores: Callable[[], float]) -> Chooser:
        made.append(Chooser(1, lambda: 1.0))
        return made[-1]

    monkeypatch.setattr(threads, "Chooser", make)
    chosen = threads.Threads()
    for work in (1, 1, 256, 300, 2, 3):
        with chosen.timed("generation", work):
            pass
    assert len(made) == 3


def test_other_load_is_that_of_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    own = psutil.Process().cpu_times
    times = namedtuple("times", ["user", "idle"])
    monkeypatch.setattr("psutil.cpu_times", lambda percpu: [times(own().user + own().system, 0.0)])
    load = OtherLoad()
    end = time.monotonic() + 1.1
    while time.monotonic() < end:
        pass
    assert load.cores() < 0.2
    monkeypatch.undo()
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        load = OtherLoad()
        time.sleep(1.2)
        assert load.cores() > 0.3
    finally:
        process.kill()
        process.wait()


def test_a_system_that_does_not_report_its_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(percpu: bool) -> None:
        raise PermissionError

    monkeypatch.setattr("psutil.cpu_times", denied)

    def hidden(process: object) -> None:
        raise psutil.NoSuchProcess(1)

    monkeypatch.setattr("psutil.Process.__init__", hidden)
    load = OtherLoad()
    load.last = (time.monotonic() - 10, 0.0)
    assert load.cores() == 0.0


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads are tied on Linux alone")
def test_other_load_is_that_of_usable_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    Times = namedtuple("Times", ["user", "nice", "system", "idle"])
    seconds = [Times(0.0, 0.0, 0.0, 0.0)] * 4
    monkeypatch.setattr("psutil.Process.nice", lambda _: 0)
    monkeypatch.setattr("psutil.cpu_times", lambda percpu: seconds)
    monkeypatch.setattr("psutil.Process.cpu_affinity", lambda _: [1, 3])
    load = OtherLoad()
    load.last = (time.monotonic() - 10, load.last[1])
    # The second core is busy, the fourth with something nice; the others are not ours.
    full, nice = Times(10.0, 0.0, 0.0, 0.0), Times(0.0, 10.0, 0.0, 0.0)
    seconds = [full, Times(8.0, 0.0, 2.0, 0.0), full, nice]
    assert load.cores() == pytest.approx(1.0, abs=0.1)


def test_threads_are_chosen_only_on_request_and_without_a_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(threads, "chosen_threads", None)
    with threads.timed("training", 1, cpu):
        pass
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(variable, "2")
        threads.choose_threads()
        assert threads.chosen_threads is None
        monkeypatch.delenv(variable)
    threads.choose_threads()
    assert threads.chosen_threads is not None
    monkeypatch.setattr(torch, "set_num_threads", lambda _: pytest.fail("a GPU has none"))
    with threads.timed("training", 1, torch.device("meta")):
        pass


def test_commands_choose_threads_unless_a_variable_fixes_them(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, used = [3], set()

    def set_number(count: int) -> None:
        number[0] = count
        used.add(count)

    monkeypatch.setattr(torch, "get_num_threads", lambda: number[0])
    monkeypatch.setattr(torch, "set_num_threads", set_number)
    monkeypatch.setattr(threads, "chosen_threads", None)
    command = ["train", str(recipe), "training.max_steps=12", "--run"]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    main([*command, str(tmp_path / "fixed")])
    assert not used
    monkeypatch.delenv("OMP_NUM_THREADS")
    main([*command, str(tmp_path / "chosen")])
    assert {1} <= used <= {1, 2, 3}
    assert number == [3] and threads.chosen_threads is None  # as if the command had not been
