"""The forecast of a run: speed, end, and the warning about the warm-up."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from seq2seq.config import TrainingConfig
from seq2seq.model.recipe import load_config
from seq2seq.training.checkpoint import RunState
from seq2seq.training.run import train
from seq2seq.training.schedule import LATEST, Forecast, minutes_left


class Clock:
    """A clock that is set by the test."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def forecast(clock: Clock, training: TrainingConfig, progress: RunState | None = None) -> Forecast:
    made = Forecast(training, progress or RunState(), alone_on_cpu=True, clock=clock)
    made.begin_update()
    return made


def test_the_time_left_at_a_speed() -> None:
    training, state = TrainingConfig(max_steps=1000, max_minutes=10), RunState(step=100, minutes=3)
    assert minutes_left(training, state, 1 / 20) == 7
    assert minutes_left(training, state, 1 / 1000) == pytest.approx(900 / 1000)
    assert minutes_left(TrainingConfig(max_steps=70), RunState(), 3.0) == 210


@pytest.mark.parametrize("seconds", [0.1, 1.0, 7.0, 12.0, 60.0])
def test_it_is_due_within_twenty_seconds_or_after_the_first_micro_batch(seconds: float) -> None:
    clock = Clock()
    made = forecast(clock, TrainingConfig(max_steps=1000))
    pieces = 0
    due = False
    while not due:
        clock.now += seconds
        pieces += 1
        due = made.add(0.5)
    assert clock.now - 100 <= max(LATEST, seconds)
    assert pieces == 1 or clock.now - 100 >= 8  # not at once, where there is time to measure
    made.make(1000)
    assert not made.add(0.5)


def test_speed_and_end_exclude_the_first_micro_batch() -> None:
    clock = Clock()
    made = forecast(clock, TrainingConfig(max_steps=1000, max_minutes=30, warmup_steps=10))
    for seconds in (6.0, 2.0, 2.0):  # two pieces an update: four seconds
        clock.now += seconds
        made.add(0.5)
    line, warning = made.make(4000)
    assert line == "1,000 tokens/s: the run ends at about update 450, in 30 min" and warning is None
    made.begin_update()
    clock.now += 1.0
    made.add(0.5)
    assert made.minutes_per_update == pytest.approx(5 / 1.5 / 60)


def test_validations_neither_count_nor_delay_it() -> None:
    clock = Clock()
    made = forecast(clock, TrainingConfig(max_steps=1000))
    due = False
    for _ in range(30):  # an update of half a second, and a validation of a minute
        made.begin_update()
        clock.now += 0.5
        due = due or made.add(1.0)
        made.pause()
        clock.now += 60
    assert due and made.minutes_per_update == pytest.approx(0.5 / 60)


def test_a_warm_up_longer_than_the_run_is_a_warning_with_remedies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("seq2seq.training.schedule.usable_cores", lambda: 8)
    monkeypatch.setattr("seq2seq.machine.precision.resolve_precision", lambda *_: "fp32")
    training = TrainingConfig(max_steps=1000, max_minutes=15, warmup_steps=60, precision="bf16")

    def said(busy: float, training: TrainingConfig) -> tuple[str, str | None]:
        clock = Clock()
        made = forecast(clock, training)
        monkeypatch.setattr(made.load, "cores", lambda: busy)
        clock.now += 20.0
        assert made.add(0.5)
        return made.make(4096)

    line, warning = said(0.0, training)
    assert line.startswith("102 tokens/s: the run ends at about update 22, in 15 min")
    assert (
        warning
        and "the run ends at about update 22, within its warm-up (training.warmup_steps) of 60"
        in warning
    )
    assert "training.warmup_steps=" not in warning  # none is short enough for 22 updates
    assert "set training.precision=auto" in warning
    assert "OMP_NUM_THREADS=1 leaves cores unused" in warning and "other programs" not in warning
    warning = said(6.8, training)[1]
    assert warning and "other programs use 6.8 of the 8 cores" in warning and "OMP" not in warning
    long = TrainingConfig(max_steps=1500, max_minutes=15 * 70, warmup_steps=4000)
    warning = said(0.0, long)[1]
    assert warning and warning.endswith(", or set a shorter warm-up: training.warmup_steps=150")
    short = TrainingConfig(max_steps=1000, max_minutes=15, warmup_steps=20)
    assert said(0.0, short)[1] is None


def test_a_run_logs_it_once(
    recipe: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("seq2seq.training.schedule.SOON", 0.0)
    options = ["training.warmup_steps=50", "training.max_steps=5"]
    with caplog.at_level(logging.INFO):
        train(load_config(recipe, options), tmp_path / "run")
    assert caplog.text.count("tokens/s: the run ends at about update 5") == 1
    assert caplog.text.count("the run ends at about update 5, within") == 1
