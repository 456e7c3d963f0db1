"""The number of threads follows the load of other programs, unless a variable fixes it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from seq2seq.cli import main
from seq2seq.machine import threads
from seq2seq.machine.threads import AdaptiveThreads

CPU = torch.device("cpu")


@pytest.fixture
def number(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Return a list of the numbers that torch's was set to; it starts with 16."""
    numbers = [16]
    monkeypatch.setattr(torch, "get_num_threads", lambda: numbers[-1])
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    monkeypatch.setattr(threads, "_threads", None)
    yield numbers


@pytest.mark.parametrize(
    ("cores", "busy", "expected"),
    [
        (16, 0.0, 16),
        (16, 0.3, 16),  # what a quiet machine does now and then
        (16, 0.97, 15),
        (16, 2.2, 14),
        (16, 40.0, 1),
        (2, 1.0, 1),
        (32, 16.0, 16),  # torch has a thread for each core, and a core may count twice
    ],
)
def test_other_programs_are_left_their_cores(
    number: list[int], monkeypatch: pytest.MonkeyPatch, cores: int, busy: float, expected: int
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(threads, "allowed_cores", lambda: cores)
    monkeypatch.setattr(threads, "_used_by_others", lambda: busy * now[0])
    adaptive = AdaptiveThreads()
    adaptive.adapt()
    assert number == [16]  # too early to know
    now[0] += 1.5
    adaptive.adapt()
    assert number[-1] == expected
    calls = len(number)
    now[0] += 0.5
    monkeypatch.setattr(threads, "_used_by_others", lambda: 0.0)
    adaptive.adapt()
    assert len(number) == calls


@pytest.mark.parametrize(
    ("limit", "expected"), [("200000 100000", 2), ("5000 100000", 1), ("max 100000", 8)]
)
def test_the_limit_of_a_container_counts(
    limit: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "allowed_cores", lambda: 8)
    monkeypatch.setattr(threads, "CPU_LIMIT", tmp_path / "cpu.max")
    assert threads.usable_cores() == 8
    threads.CPU_LIMIT.write_text(f"{limit}\n")
    assert threads.usable_cores() == expected


def test_threads_adapt_only_on_request_on_a_cpu_and_without_a_variable(
    number: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "INTERVAL", 0.0)
    monkeypatch.setattr(threads, "allowed_cores", lambda: 3)
    monkeypatch.setattr(threads, "_used_by_others", lambda: 0.0)
    threads.adapt_threads(CPU)
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "2")
            threads.choose_threads()
        threads.adapt_threads(CPU)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads.choose_threads()
    threads.adapt_threads(torch.device("meta"))
    assert number == [16]
    threads.adapt_threads(CPU)
    assert number == [16, 3]
    threads.keep_threads()
    threads.adapt_threads(CPU)
    assert number == [16, 3, 16]


def test_a_command_leaves_the_number_as_it_was(
    recipe: Path, tmp_path: Path, number: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "INTERVAL", 0.0)
    monkeypatch.setattr(threads, "allowed_cores", lambda: 2)
    command = ["train", str(recipe), "training.max_steps=3", "--run"]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    main([*command, str(tmp_path / "fixed")])
    assert number == [16]
    monkeypatch.delenv("OMP_NUM_THREADS")
    main([*command, str(tmp_path / "chosen")])
    assert number[-1] == 16 and {1, 2} & set(number) and threads._threads is None
