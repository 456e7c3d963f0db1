"""`seq2seq report`: its curves, pictures and sections, of runs of all tasks."""

from __future__ import annotations

import json
import re
import shutil
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import vl_convert
from commands import error, seq2seq

from seq2seq.report.report import (
    MOST_POINTS,
    curve_rows,
    line_charts,
    page,
    table,
    write_report,
)
from seq2seq.report.runs import RunRecord

MEGABYTE = 2**20


def record(*metrics: dict[str, Any]) -> RunRecord:
    return RunRecord(Path("runs/x"), "stopped", metrics=metrics)


def test_curves_are_over_updates_and_minutes() -> None:
    log = [{"kind": "train", "step": 10 * i, "minutes": 0.5 * i, "loss": 3.0} for i in (1, 2)]
    validation = {"kind": "validation", "step": 15, "minutes": 0.75, "bleu": 12.34567}
    assert curve_rows({"a": record(*log, validation)}) == [
        {"run": "a", "updates": 10, "minutes": 0.5, "loss": 3.0},
        {"run": "a", "updates": 20, "minutes": 1.0, "loss": 3.0},
        {"run": "a", "updates": 15, "minutes": 0.75, "bleu": 12.346},
    ]


def test_long_curves_are_thinned_out() -> None:
    steps = range(1, MOST_POINTS + 1)
    log = [{"kind": "train", "step": i, "minutes": 1.0, "loss": float("nan")} for i in steps]
    rows = curve_rows(dict.fromkeys("abc", record(*log)))
    assert MOST_POINTS / 2 < len(rows) <= MOST_POINTS and "loss" not in rows[0]
    assert rows[0]["updates"] < 5 and rows[-1]["updates"] == MOST_POINTS


def test_texts_in_charts_cannot_end_the_script() -> None:
    evil = "</script><script>alert(1)</script>"
    rows = [{"run": evil, "updates": 1, "loss": 2.0}]
    text = page(evil, [line_charts(rows, {"loss": evil}), table([[evil], [evil]])])
    assert "alert(1)</script>" not in text and text.count("</script>") == 1


def test_a_missing_extra_is_named(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    message = error("report", run, "-o", tmp_path / "page.html")
    assert "the extra report" in message and "vl-convert-python" in message
    assert not (tmp_path / "page.html").exists()


def drawn(text: str) -> list[str]:
    """Draw the charts of a page with Vega-Lite itself, which raises for a mistake; get titles."""
    [spec] = re.findall(r'vegaEmbed\("#curves", (.*), \{bind', text)
    svg = vl_convert.vegalite_to_svg(json.loads(spec))
    assert "<path" in svg
    return re.findall("Title text '(.*?)'", svg)


def check(path: Path, *needed: str) -> str:
    """Check what every page promises; return its text."""
    text = path.read_text(encoding="utf-8")
    assert path.stat().st_size < 3 * MEGABYTE
    elements = re.sub(r"(<script[^>]*>).*?</script>", r"\1", text, flags=re.DOTALL)
    assert not re.findall(r"<[^>]*\s(?:src|href|action)=", elements)
    titles = drawn(text)
    assert titles
    for title in titles:
        assert re.search(r"\(.+\)", title), title  # its units
    for part in needed:
        assert part in text, part
    return text


def test_a_page_about_two_translation_runs(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(run, other, symlinks=True)
    recipe = other / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("warmup_steps: 2", "warmup_steps: 3"))
    output = tmp_path / "page.html"
    done = seq2seq("report", run, other, "-o", output)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().strip() == str(output)
    model = "Samples", "Provenance"
    text = check(output, "Cleaning", *model, "training.warmup_steps", "max_steps: 4")
    assert text.count("<h3>Samples") == 2
    quick = tmp_path / "quick.html"
    assert seq2seq("report", run, "--quick", "-o", quick).returncode == 0
    check(quick, "Cleaning")


@pytest.fixture
def others(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(prepared, tmp_path / "prepared", symlinks=True)
    monkeypatch.chdir(tmp_path / "prepared")
    return tmp_path / "prepared" / "runs"


def test_a_page_about_a_language_model(others: Path, tmp_path: Path) -> None:
    write_report([others / "mybook"], tmp_path / "page.html", device="cpu")
    check(tmp_path / "page.html", "Data", "Samples", "Temperature 0.8")


def test_a_page_about_a_classifier(others: Path, tmp_path: Path, run: Path) -> None:
    write_report([others / "reviews"], tmp_path / "page.html", device="cpu")
    check(tmp_path / "page.html", "Most confident errors", "probability", "Confusion matrix")
    write_report([others / "reviews", run], tmp_path / "page.html", device="cpu", quick=True)
    check(tmp_path / "page.html", "classification", "translation")


def test_a_run_without_metrics_or_models_has_a_page(run: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(run / "starts.jsonl", bare)
    shutil.copy(run / "recipe.yaml", bare)
    output = tmp_path / "page.html"
    write_report([bare], output, device="cpu")
    text = output.read_text()
    assert "No metrics have been logged yet" in text and "No samples: " in text
