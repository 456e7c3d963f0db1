"""Curves of metrics.jsonl: records, goals, errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from seq2seq.errors import UserError
from seq2seq.report.curves import (
    Curve,
    main_metric,
    plot_curves,
    reached_text,
    read_curve,
    read_curves,
    require_plots,
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    records = [
        {"kind": "train", "step": 10, "loss": 4.0, "minutes": 0.5},
        {"kind": "validation", "step": 20, "bleu": 10.0, "minutes": 1.0},
        {"kind": "validation", "step": 40, "bleu": 30.0, "minutes": 2.5},
        {"kind": "average", "step": 40, "bleu": 35.0, "minutes": 2.75},
        {"kind": "validation", "step": 60, "bleu": 20.0, "minutes": 3.0},
    ]
    folder = tmp_path / "one"
    folder.mkdir()
    lines = (json.dumps(record) + "\n" for record in records)
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


def test_a_curve_has_the_records_of_its_kind_only(run: Path) -> None:
    curve = read_curve(run, "validation/bleu", "minutes")
    assert (curve.name, curve.xs, curve.values) == ("one", [1.0, 2.5, 3.0], [10.0, 30.0, 20.0])
    assert read_curve(run, "train/loss", "updates") == Curve(
        "one", [10.0], [4.0], lower_is_better=True
    )


def test_a_goal_is_reached_when_it_is_first_met(run: Path) -> None:
    curve = read_curve(run, "validation/bleu", "minutes")
    assert [curve.reaches(goal) for goal in (10, 10.1, 30, 30.1)] == [1.0, 2.5, 2.5, None]
    assert reached_text([curve], [10, 35], "minutes").splitlines() == [
        "|  | minutes to 10 | minutes to 35 |", "| --- | --- | --- |", "| one | 1 | never |"
    ]  # fmt: skip


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_plot_names_its_runs(run: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"curves.{suffix}"
    require_plots(path)
    plot_curves([Curve("first", [1, 2], [3, 4])], path, "validation/bleu", "minutes", [3.5])
    assert path.stat().st_size > 1000
    if suffix == "svg":
        assert "<!-- first -->" in path.read_text() and "<!-- minutes -->" in path.read_text()


def test_lower_is_better_for_a_loss() -> None:
    falling = Curve("x", [1.0, 2.0, 3.0], [5.0, 3.0, 2.0], lower_is_better=True)
    assert [falling.reaches(goal) for goal in (6, 3, 2.5, 1)] == [1.0, 2.0, 3.0, None]


def test_runs_of_one_name_are_distinguished(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "b" / "one"
    shutil.copytree(run, other)
    names = [curve.name for curve in read_curves([run, other], "train/loss", "updates")]
    assert names == [str(run), str(other)]
    [curve] = read_curves([run], "train/loss", "updates")
    assert curve.name == "one" and curve.lower_is_better


def test_errors_list_the_available_metrics(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no validation/loss; it has average/bleu"):
        read_curve(run, "validation/loss", "minutes")
    with pytest.raises(UserError, match="is not a run directory"):
        read_curve(tmp_path / "none", "validation/bleu", "minutes")
    with pytest.raises(UserError, match=r"ends with one of \..*svg"):
        require_plots(tmp_path / "curves.gif2")
    with (run / "metrics.jsonl").open("a") as stream:
        stream.write('{"kind": "valid')
    assert len(read_curve(run, "validation/bleu", "minutes").xs) == 3  # cut short by a crash
    with (run / "metrics.jsonl").open("a") as stream:
        stream.write("\n")
    with pytest.raises(UserError, match="line 6"):
        read_curve(run, "validation/bleu", "minutes")


@pytest.mark.parametrize("line", [b"[]", b"3", b"\xff", b"{", b"[" * 100_000, b'{"step": 3}'])
def test_a_damaged_line_is_named(run: Path, line: bytes) -> None:
    with (run / "metrics.jsonl").open("ab") as stream:
        stream.write(line + b"\n")
    with pytest.raises(UserError, match=r"line 6 is not a valid record: .*; delete it"):
        read_curve(run, "validation/bleu", "minutes")
    assert main_metric(run) == "validation/bleu"


@pytest.mark.parametrize(
    ("measured", "main"),
    [
        ({"nll": 2.0, "bleu": 3.0}, "validation/bleu"),
        ({"nll": 2.0, "bits_per_character": 3.0}, "validation/bits_per_character"),
        ({"nll": 2.0, "accuracy": 50.0}, "validation/accuracy"),
        ({"nll": 2.0}, "validation/nll"),
    ],
)
def test_the_main_metric_is_that_of_the_task(
    tmp_path: Path, measured: dict[str, float], main: str
) -> None:
    line = {"kind": "validation", "step": 1, "minutes": 1.0, **measured}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    assert main_metric(tmp_path) == main
    curve = read_curve(tmp_path, main, "updates")
    assert curve.lower_is_better == (main in ("validation/bits_per_character", "validation/nll"))
