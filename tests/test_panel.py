"""The live panel of a run, and what a finished run says."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
from accelerate import Accelerator
from rich.console import Console

from seq2seq.config import Config, TrainingConfig
from seq2seq.training.panel import TrainingPanel, sparkline
from seq2seq.training.progress import Monitor
from seq2seq.training.state import RunState
from seq2seq.training.summary import summary

METRICS = {"loss": 2.5, "lr": 1e-3, "tokens_per_second": 12345.0, "mfu": 0.25, "minutes": 3.0,
           "memory_gib": 1.25}  # fmt: skip


def shown(panel: TrainingPanel) -> str:
    """Return the panel as a terminal of 100 columns shows it, without colours."""
    console = Console(file=io.StringIO(), width=100, color_system=None, force_terminal=True)
    console.print(panel.render())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_panel_shows_what_is_known() -> None:
    panel = TrainingPanel("runs/one[x]", 1000, "bleu")
    text = shown(panel)
    assert "runs/one[x]" in text and "none yet" in text and "loss" not in text
    panel.advance(250)
    panel.training(9.0, METRICS)
    for step, bleu in ((100, 10.0), (200, 30.0), (250, 20.0)):
        panel.validation(step, {"bleu": bleu, "nll": 1.0})
    panel.checkpoint(240)
    text = shown(panel)
    for part in ("update 250", "9 min left", "loss        2.500", "12,345 tokens/s", "MFU 25%",
                 "20.00   best 30.00 at update 200   ▁█▅", "update 240",
                 "memory 1.2 GiB"):  # fmt: skip
        assert part in text, part
    assert len({len(line) for line in text.splitlines()}) == 1


def test_the_lowest_nll_is_the_best() -> None:
    panel = TrainingPanel("run", 10, "nll")
    panel.validation(1, {"nll": 2.0})
    panel.validation(2, {"nll": math.nan})
    assert "nan   best 2.00 at update 1" in shown(panel)


def test_the_share_is_that_of_updates_or_of_time() -> None:
    panel = TrainingPanel("run", 1000, "bleu")
    panel.advance(100)
    assert panel._share() == pytest.approx(0.1)
    panel.training(1.0, METRICS)  # 3 of 4 minutes
    assert panel._share() == pytest.approx(0.75)


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
    monitor = Monitor(tmp_path, Accelerator(cpu=True), done=RunState(), config=TrainingConfig())
    assert (monitor._panel is not None) == panel
    caplog.set_level("INFO", "seq2seq")
    monitor.training(10, 2.0, METRICS | {"loss": 2.5})
    assert any("update 10  loss 2.500" in each for each in caplog.messages) != panel


def test_a_summary_names_model_cost_and_commands() -> None:
    state = RunState(step=2500, minutes=12.0, best="kept/step_2000", best_score=31.234)
    lines = summary(Config(), Path("runs/one"), state).splitlines()
    assert lines[0] == ("best model: runs/one/best, bleu 31.23 on the development set, update 2000")
    assert lines[1] == "cost: 2,500 updates in 12 min"
    assert [line.split()[1] for line in lines[3:5]] == ["evaluate", "translate"]
    config = replace(Config(), task="language_model")
    config = replace(config, training=replace(config.training, best_by="nll"))
    state = replace(state, best_score=-1.5, best="kept/average_2500")
    text = summary(config, Path("runs/one"), state)
    assert "nll 1.50" in text and "the average of checkpoints" in text and "generate" in text
    assert "best model" not in summary(Config(), Path("x"), RunState(step=1))
