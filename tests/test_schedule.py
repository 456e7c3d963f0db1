"""Learning rates against the formulas they are named for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from seq2seq.config import TrainingConfig
from seq2seq.training.checkpoint import RunState
from seq2seq.training.schedule import learning_rate, minutes_left


@pytest.mark.parametrize("step", [1, 100, 3999, 4000, 4001, 100_000])
def test_noam_is_equation_3_of_the_paper(step: int) -> None:
    config = TrainingConfig(schedule="noam", lr=2.0, warmup_steps=4000)
    expected = 2.0 * 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
    assert learning_rate(config, 512, step) == pytest.approx(expected, rel=1e-12)


def test_noam_peaks_at_the_papers_rate() -> None:
    config = TrainingConfig(schedule="noam", lr=1.0, warmup_steps=4000)
    assert learning_rate(config, 512, 4000) == pytest.approx(6.99e-4, rel=1e-3)
    assert learning_rate(config, 1024, 4000) == pytest.approx(4.94e-4, rel=1e-3)


def test_inverse_square_root_peaks_at_the_end_of_the_warm_up() -> None:
    config = TrainingConfig(schedule="inverse_sqrt", lr=0.005, warmup_steps=2000)
    assert learning_rate(config, 512, 500) == pytest.approx(0.00125)
    assert learning_rate(config, 512, 2000) == pytest.approx(0.005)
    assert learning_rate(config, 512, 8000) == pytest.approx(0.0025)


def test_cosine_falls_to_zero_at_the_last_update() -> None:
    config = TrainingConfig(schedule="cosine", lr=0.002, warmup_steps=100, max_steps=1100)
    assert learning_rate(config, 512, 50) == pytest.approx(0.001)
    assert learning_rate(config, 512, 100) == pytest.approx(0.002)
    assert learning_rate(config, 512, 600) == pytest.approx(0.001)
    assert learning_rate(config, 512, 1100) == pytest.approx(0.0, abs=1e-12)


def test_cosine_follows_max_minutes() -> None:
    config = TrainingConfig(
        schedule="cosine", lr=0.002, warmup_steps=100, max_steps=1100, max_minutes=10
    )
    assert learning_rate(config, 512, 200, elapsed_minutes=5) == pytest.approx(0.001)
    assert learning_rate(config, 512, 600, elapsed_minutes=1) == pytest.approx(0.001)
    assert learning_rate(config, 512, 200, elapsed_minutes=10) == pytest.approx(0.0, abs=1e-12)


def test_cosine_ends_at_lr_end() -> None:
    config = TrainingConfig(schedule="cosine", lr=1e-3, lr_end=1e-4, warmup_steps=100,
                            max_steps=5000)  # fmt: skip
    assert learning_rate(config, 512, 100) == pytest.approx(1e-3)
    assert learning_rate(config, 512, 2550) == pytest.approx(5.5e-4)
    assert learning_rate(config, 512, 5000) == pytest.approx(1e-4)


def test_the_time_left_is_that_of_the_nearer_limit() -> None:
    config, state = TrainingConfig(max_steps=1000), RunState(step=100, minutes=3)
    assert minutes_left(config, state) == pytest.approx(27)
    assert minutes_left(replace(config, max_minutes=10), state) == 7
