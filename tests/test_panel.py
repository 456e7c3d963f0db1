"""The live panel of a run, and what a finished run says."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator
from rich.console import Console

from seq2seq.config import Config, TrainingConfig
from seq2seq.training.checkpoint import RunState
from seq2seq.training.log import TrainingLog, sparkline, summary

METRICS = {"loss": 2.5, "lr": 1e-3, "tokens_per_second": 12345.0, "minutes": 3.0,
           "memory_gib": 1.25}  # fmt: skip


@pytest.fixture
def make_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TrainingLog]:
    """Return a function that makes the log of a run with a short name."""
    monkeypatch.chdir(tmp_path)
    (run := Path("runs/one[x]")).mkdir(parents=True)

    def make(state: RunState, **training: Any) -> TrainingLog:
        return TrainingLog(run, Accelerator(cpu=True), state, TrainingConfig(**training))

    return make


def shown(log: TrainingLog) -> str:
    """Return the panel as a terminal of 100 columns shows it, without colours."""
    console = Console(file=io.StringIO(), width=100, color_system=None, force_terminal=True)
    console.print(log.render())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_panel_shows_what_is_known(make_log: Callable[..., TrainingLog]) -> None:
    state = RunState()
    log = make_log(state, max_steps=1000, best_by="bleu")
    text = shown(log)
    assert "runs/one[x]" in text and "none yet" in text and "loss" not in text
    for step, bleu in ((100, 10.0), (200, 30.0), (240, 20.0)):
        state.step = step
        log.validation({"bleu": bleu, "nll": 1.0}, best=False)
    log.validation({"bleu": 99.0}, best=True, kind="average")  # is none of the model's scores
    log.checkpoint()
    state.step = 250
    log.training(9.0, METRICS)
    text = shown(log)
    for part in (
        "250  9 min left",
        "2.500  learning rate 1.00e-03",
        "12,345 tokens/s  memory 1.2 GiB",
        "20.00  best 30.00 at update 200  ▁█▅",
        "update 240",
    ):
        assert part in text, part
    assert len({len(line) for line in text.splitlines()}) == 1


def test_the_lowest_nll_is_the_best(make_log: Callable[..., TrainingLog]) -> None:
    log = make_log(state := RunState(), max_steps=10, best_by="nll")
    for state.step, nll in ((1, 2.0), (2, math.nan)):
        log.validation({"nll": nll}, best=False)
    assert "nan  best 2.00 at update 1" in shown(log)


def test_a_sparkline_has_the_last_values_between_the_extremes() -> None:
    assert sparkline([1.0, 8.0, 5.0]) == "▁█▅"
    assert sparkline([5.0, 5.0]) == "▁▁" and len(sparkline(list(range(100)))) == 40


@pytest.mark.parametrize(("term", "is_tty", "panel"), [
    ("xterm", True, True), ("dumb", True, False), ("xterm", False, False),
])  # fmt: skip
def test_a_panel_needs_a_terminal_that_can_draw_it(
    term: str,
    is_tty: bool,
    panel: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return is_tty

    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("sys.stderr", Stream())
    log = TrainingLog(tmp_path, Accelerator(cpu=True), RunState(step=10), TrainingConfig())
    assert (log._live is not None) == panel
    caplog.set_level("INFO", "seq2seq")
    log.training(2.0, METRICS | {"loss": 2.5})
    assert any("update 10  loss 2.500" in each for each in caplog.messages) != panel


def test_a_summary_names_model_cost_and_commands() -> None:
    state = RunState(step=2500, minutes=12.0, best="kept/step_2000", best_score=31.234)
    lines = summary(Config(), Path("runs/one"), state).splitlines()
    assert lines[0] == ("best model: runs/one/best, BLEU 31.23 on the development set, update 2000")
    assert lines[1] == "cost: 2,500 updates in 12 min"
    assert [line.split()[1] for line in lines[3:5]] == ["evaluate", "translate"]
    config = replace(Config(), task="language_model")
    config = replace(config, training=replace(config.training, best_by="nll"))
    state = replace(state, best_score=-1.5, best="kept/average_2500")
    text = summary(config, Path("runs/one"), state)
    assert "nll 1.50" in text and "the average of checkpoints" in text and "generate" in text
    assert "best model" not in summary(Config(), Path("x"), RunState(step=1))
