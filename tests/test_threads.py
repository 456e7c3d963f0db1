"""The number of threads follows the speed of the work, and never a variable that says how many."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from seq2seq.machine import threads
from seq2seq.machine.threads import PAUSE, RECENT, Chooser, OtherLoad, candidates


class Machine:
    """Work whose speed is a function of the number of threads, and a clock that it moves."""

    def __init__(self, speed: Callable[[int], float], busy: float = 0.0) -> None:
        self.speed, self.busy, self.now = speed, busy, 0.0
        self.used: list[int] = []

    def chooser(self, counts: list[int]) -> Chooser:
        return Chooser(counts, lambda: self.busy, lambda: self.now)

    def work(self, chooser: Chooser, pieces: int) -> None:
        for _ in range(pieces):
            count = chooser.next_count()
            self.used.append(count)
            self.now += 1 / self.speed(count)
            chooser.record(self.speed(count))


def test_candidates() -> None:
    assert candidates(1) == [1]
    assert candidates(2) == [2, 1]
    assert candidates(8) == [8, 7, 4, 2, 1]
    assert candidates(6) == [6, 5, 3, 1]


@pytest.mark.parametrize("best", [1, 2, 4, 7, 8])
def test_the_fastest_number_is_found(best: int) -> None:
    machine = Machine(lambda count: 100.0 if count == best else 60.0)
    chooser = machine.chooser(candidates(8))
    machine.work(chooser, 20)
    assert chooser.count == best
    assert set(machine.used) == {8, 7, 4, 2, 1}
    machine.used.clear()
    machine.work(chooser, 50)
    assert set(machine.used) == {best}


def test_the_first_piece_of_each_number_warms_up() -> None:
    warm: set[int] = set()

    def speed(count: int) -> float:
        first = count not in warm
        warm.add(count)
        return 1.0 if first and count == 2 else 10.0 * count

    machine = Machine(speed)
    chooser = machine.chooser([2, 1])
    machine.work(chooser, 8)
    assert chooser.count == 2


def test_a_program_on_another_core_is_noticed_and_its_end_too() -> None:
    machine = Machine(lambda count: 100.0 * count)
    chooser = machine.chooser([2, 1])
    machine.work(chooser, 2000)
    assert chooser.count == 2
    machine.busy, machine.speed = 1.0, lambda count: 100.0 if count == 1 else 20.0
    machine.work(chooser, 2 * RECENT)
    assert chooser.count == 1
    machine.used.clear()
    machine.work(chooser, 5000)  # no other number is tried as long as there is no core for it
    assert set(machine.used) == {1}
    machine.busy, machine.speed = 0.0, lambda count: 100.0 * count
    machine.work(chooser, 7000)  # a pause is at most a minute
    assert chooser.count == 2


def test_a_load_that_is_there_from_the_start_costs_no_trial() -> None:
    machine = Machine(lambda count: 100.0 if count == 1 else 2.0, busy=0.97)
    chooser = machine.chooser([2, 1])
    machine.work(chooser, 30)
    assert set(machine.used) == {1}


def test_trials_that_change_nothing_become_rare() -> None:
    machine = Machine(lambda count: 100.0 / count)  # one thread is best, and no core is taken
    chooser = machine.chooser([2, 1])
    machine.work(chooser, 60_000)
    tried = sum(count == 2 for count in machine.used)
    assert 4 * 5 <= tried <= 4 * (4 + machine.now / 60)


def test_speed_that_varies_a_little_starts_no_trial() -> None:
    pieces = 0

    def speed(count: int) -> float:
        nonlocal pieces
        pieces += 1
        return (100.0 if pieces % 2 else 85.0) * count

    machine = Machine(speed)
    chooser = machine.chooser([2, 1])
    machine.work(chooser, 8)
    machine.used.clear()
    machine.work(chooser, 20_000)
    assert set(machine.used) == {2} and machine.now > 10 * PAUSE


def test_other_load_is_that_of_other_processes() -> None:
    load = OtherLoad()
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        pass  # one's own work
    alone = load.cores()
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    time.sleep(1.0)
    beside = load.cores()
    process.kill()
    process.wait()
    assert beside > 0.3
    assert alone < (os.cpu_count() or 1) - 0.5


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads are tied on Linux alone")
def test_other_load_is_that_of_the_cores_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    Times = namedtuple("Times", ["user", "nice", "system", "idle"])
    seconds = [Times(0.0, 0.0, 0.0, 0.0)] * 4
    monkeypatch.setattr("psutil.cpu_times", lambda percpu: seconds)
    monkeypatch.setattr("psutil.Process.cpu_affinity", lambda _: [1, 3])
    load = OtherLoad()
    load._last = (time.monotonic() - 10, load._last[1])
    # The second core is busy, the fourth with something nice; the others are not ours.
    full, nice = Times(10.0, 0.0, 0.0, 0.0), Times(0.0, 10.0, 0.0, 0.0)
    seconds = [full, Times(8.0, 0.0, 2.0, 0.0), full, nice]
    assert load.cores() == pytest.approx(1.0, abs=0.1)


def test_nothing_is_chosen_unasked_or_against_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(threads, "_threads", None)
    with threads.timed("training", 1.0, cpu):
        pass
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(variable, "2")
        threads.choose_threads()
        assert threads._threads is None
        monkeypatch.delenv(variable)
    threads.choose_threads()
    assert threads._threads is not None
    monkeypatch.setattr(torch, "set_num_threads", lambda _: pytest.fail("a GPU has none"))
    with threads.timed("training", 1.0, torch.device("meta")):
        pass


def test_commands_choose_and_the_variable_decides(recipe: Path, tmp_path: Path) -> None:
    program = (
        "import json, sys, torch; used = set(); plain = torch.set_num_threads\n"
        "torch.get_num_threads = lambda: number[0]\n"
        "number = [3]\n"
        "def set_number(n): used.add(n); number[0] = n; plain(1)\n"
        "torch.set_num_threads = set_number\n"
        "from seq2seq.cli import main\n"
        "main(sys.argv[1:])\n"
        "print(json.dumps(sorted(used)))\n"
    )

    def used(**variables: str) -> list[int]:
        environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        found = subprocess.run(
            [sys.executable, "-c", program, "train", str(recipe), "training.max_steps=12",
             "--run", str(tmp_path / f"run{len(variables)}")],
            env=environment | variables, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return json.loads(found.stdout.splitlines()[-1])

    assert used(OMP_NUM_THREADS="3") == []
    assert {1} <= set(used()) <= {1, 2, 3}
