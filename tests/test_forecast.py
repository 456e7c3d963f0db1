"""What a run says early: that it will end within its warm-up, that threads wait for each other."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from seq2seq.config import TrainingConfig, load_config
from seq2seq.evaluation.evaluator import for_training
from seq2seq.training.agenda import Agenda
from seq2seq.training.forecast import warnings
from seq2seq.training.progress import Progress
from seq2seq.training.run import train


def test_the_last_update_by_the_speed_so_far() -> None:
    training = TrainingConfig(max_steps=1000, max_minutes=10)
    progress = Progress(step=100, minutes=2.0)
    agenda = Agenda(training, progress)
    progress.step, progress.minutes = 120, 3.0  # twenty a minute since it was started again
    assert agenda.last_step() == pytest.approx(120 + 7 * 20)
    progress.step, progress.minutes = 1100 - 500, 3.0
    assert agenda.last_step() == 1000
    assert Agenda(TrainingConfig(max_steps=70), Progress()).last_step() == 70


def test_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    training = TrainingConfig(warmup_steps=200)

    def said(load: float, **numbers: float) -> list[str]:
        monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
        usual = {"last_step": 500, "threads": 2, "ceiling_share": 0.1}
        return list(warnings(training, **(usual | numbers)))  # type: ignore[arg-type]

    assert said(2.0) == said(3.5, threads=1) == said(3.5, ceiling_share=0.4) == []
    [text] = said(3.5)
    assert "10% of what 2 threads could do" in text and "OMP_NUM_THREADS=1" in text
    [text] = said(0.0, last_step=26.4)
    assert "after about 26 updates, within its warm-up (training.warmup_steps) of 200" in text
    assert len(said(3.5, last_step=26)) == 2


def test_a_run_says_it_once(recipe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = ["training.log_every=1", "training.warmup_steps=50", "training.max_steps=5"]
    with caplog.at_level(logging.WARNING):
        train(load_config(recipe, options), tmp_path / "run", for_training)
    assert caplog.text.count("at this speed the run ends after about 5 updates") == 1
