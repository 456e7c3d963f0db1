"""Learning rates against the formulas they are named for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from seq2seq.config import TrainingConfig
from seq2seq.training.run_directory import RunState
from seq2seq.training.schedule import learning_rate, minutes_left


def test_noam_peaks_at_the_rate_of_the_paper() -> None:
    config = TrainingConfig(schedule="noam", lr=1.0, warmup_steps=4000)
    assert learning_rate(config, 512, 4000) == pytest.approx(6.99e-4, rel=1e-3)
    assert learning_rate(config, 1024, 4000) == pytest.approx(4.94e-4, rel=1e-3)
    assert learning_rate(config, 512, 1000) == pytest.approx(512**-0.5 * 1000 * 4000**-1.5)
    assert learning_rate(config, 512, 9000) == pytest.approx(512**-0.5 * 9000**-0.5)


@pytest.mark.parametrize(
    ("schedule", "options", "rates"),
    [
        ("inverse_sqrt", {}, {50: 0.001, 100: 0.002, 400: 0.001}),
        ("cosine", {}, {50: 0.001, 100: 0.002, 600: 0.001, 1100: 0.0}),
        ("cosine", {"lr_end": 1e-4}, {100: 0.002, 600: 0.00105, 1100: 1e-4}),
    ],
)
def test_rates_of_schedules_with_a_peak(
    schedule: str, options: dict[str, float], rates: dict[int, float]
) -> None:
    config = TrainingConfig(**{"lr": 0.002, "warmup_steps": 100, "max_steps": 1100, **options})  # type: ignore[arg-type]
    config = replace(config, schedule=schedule)  # type: ignore[arg-type]
    found = {step: learning_rate(config, 512, step) for step in rates}
    assert found == pytest.approx(rates, abs=1e-12)


def test_cosine_follows_max_minutes() -> None:
    config = TrainingConfig(
        schedule="cosine", lr=0.002, warmup_steps=100, max_steps=1100, max_minutes=10
    )
    assert learning_rate(config, 512, 200, elapsed_minutes=5) == pytest.approx(0.001)
    assert learning_rate(config, 512, 600, elapsed_minutes=1) == pytest.approx(0.001)
    assert learning_rate(config, 512, 200, elapsed_minutes=10) == pytest.approx(0.0, abs=1e-12)


def test_the_time_left_is_that_of_the_nearer_limit() -> None:
    config, state = TrainingConfig(max_steps=1000), RunState(step=100, minutes=3)
    assert minutes_left(config, state) == pytest.approx(27)
    assert minutes_left(replace(config, max_minutes=10), state) == 7
