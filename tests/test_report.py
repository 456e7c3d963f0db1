"""`seq2seq report`: its curves, pictures and sections, of runs of all tasks."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vl_convert
from commands import error, seq2seq

from seq2seq.decoding.search import Finished
from seq2seq.errors import UserError
from seq2seq.model.recipe import load_config
from seq2seq.report.page import Charts, bar_chart, heat_map, page
from seq2seq.report.report import MOST_POINTS, curve_rows, watch_report, write_report
from seq2seq.report.runs import RunRecord
from seq2seq.report.samples import search_tree
from seq2seq.training.run import train

MEGABYTE = 2**20


def record(*metrics: dict[str, Any]) -> RunRecord:
    return RunRecord(Path("runs/x"), "stopped", metrics=metrics)


def test_curves_are_over_updates_tokens_and_minutes() -> None:
    log = [
        {
            "kind": "train",
            "step": 10 * i,
            "minutes": 0.5 * i,
            "loss": 3.0,
            "tokens_per_update": 1e5 * i,
        }
        for i in (1, 2)
    ]
    validation = {"kind": "validation", "step": 15, "minutes": 0.75, "bleu": 12.34567}
    both = record(*log, validation)
    assert curve_rows({"a": both}, "train") == [
        {"run": "a", "updates": 10, "tokens": 1.0, "minutes": 0.5, "loss": 3.0},
        {"run": "a", "updates": 20, "tokens": 3.0, "minutes": 1.0, "loss": 3.0},
    ]
    # Between two log steps, tokens are as many as updates have been made.
    assert curve_rows({"a": both}, "validation") == [
        {"run": "a", "updates": 15, "tokens": 2.0, "minutes": 0.75, "bleu": 12.346}
    ]


def test_long_curves_are_thinned_out_between_their_ends() -> None:
    log = [{"kind": "train", "step": i, "loss": float("nan")} for i in range(1, MOST_POINTS + 1)]
    rows = curve_rows(dict.fromkeys("abc", record(*log)), "train")
    assert len(rows) <= MOST_POINTS and rows[0]["loss"] is None
    assert (rows[0]["updates"], rows[-1]["updates"]) == (1, MOST_POINTS)


def test_a_goal_is_reached_when_it_is_first_met() -> None:
    values = [
        {"kind": "validation", "step": i, "minutes": i / 2, "bleu": bleu}
        for i, bleu in ((1, 10.0), (2, 30.0), (3, 20.0))
    ]
    assert record(*values).reached(20.0) == "1.0 min, update 2"
    assert record(*values).reached(30.1) == "never"
    lower = [{"kind": "validation", "step": i, "nll": 4.0 / i} for i in (1, 2, 4)]
    assert record(*lower).reached(2.0) == "0.0 min, update 2"


def test_a_search_is_a_tree() -> None:
    alive = {(): 0.0, (1,): -1.0, (2,): -2.0, (2, 3): -2.5, (1, 3): -1.5, (1, 4): -3.0}
    finished = {(1, 3): Finished([1, 3], -1.75, -0.5), (2,): Finished([2], -2.5, -1.25)}
    text = search_tree(alive, finished, ["", "a", "<b>", "c", "d"])
    shown = re.sub("<(span|mark) title.*?>|</?(span|mark|div.*?)>", "", text)
    assert shown == (
        '<ul class="tree"><li>start<ul><li>a<ul><li>c (end -0.50)</li><li>d</li></ul></li>'
        "<li>&lt;b&gt; (end -1.25) c</li></ul></li></ul>"
    )
    assert re.findall("<mark.*?>(.*?)</mark>", text) == ["start", "a", "c (end -0.50)"]
    assert 'log-probability -2.000, of the whole -3.000">d<' in text


def test_texts_in_charts_cannot_end_the_script() -> None:
    charts = Charts()
    evil = "</script><script>alert(1)</script>"
    figure = charts.add(f"Title {evil} (units)", heat_map([evil], ["y"], [[1.0]], (evil, "b", "c")))
    text = page("x", [figure, charts.scripts()])
    assert "alert(1)</script>" not in text and text.count("</script>") == 2


def test_numbers_that_json_lacks_are_left_out() -> None:
    charts = Charts()
    charts.add("Title (units)", heat_map(["a"], ["b"], [[float("nan")]], ("x", "y", "z")))
    assert "NaN" not in charts.scripts().partition("</script>")[0]


def test_a_missing_extra_is_named(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("seq2seq.extras.version", missing)
    message = error("report", run, "-o", tmp_path / "page.html")
    assert "the extra report" in message and "vl-convert-python" in message
    assert not (tmp_path / "page.html").exists()


def drawn(text: str) -> int:
    """Draw all charts of a page with Vega-Lite itself, which raises for a mistake; count them."""
    [data] = re.findall(r'<script type="application/json" id="page-data">(.*?)</script>', text)
    given = json.loads(data)
    for spec in given["charts"].values():
        if name := spec["data"].get("name"):
            spec["datasets"] = {name: given["data"][name]}
        if spec["width"] == "container":
            spec["width"] = 300
        svg = vl_convert.vegalite_to_svg(spec)
        assert svg.startswith("<svg") and ("<path" in svg or "<rect" in svg)
    return len(given["charts"])


class Page(HTMLParser):
    """The links and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.links += [str(x) for key, x in attributes if key in ("src", "href", "action")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def check(path: Path, *needed: str) -> str:
    """Check what every page promises; return its text."""
    text = path.read_text(encoding="utf-8")
    assert path.stat().st_size < 3 * MEGABYTE
    found = Page(text)
    assert not found.links, found.links
    captions = re.findall("<figcaption>(.*?)</figcaption>", text)
    assert len(captions) == drawn(text) > 0
    for caption in captions:
        assert re.search(r"\(.+\)", caption), caption  # its units
    shown = " ".join(found.texts)
    for part in needed:
        assert part in shown, part
    return text


def test_a_page_about_two_translation_runs(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(run, other, symlinks=True)
    recipe = other / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("warmup_steps: 2", "warmup_steps: 3"))
    output = tmp_path / "page.html"
    goals = "--goal", 0, "--goal", 101
    done = seq2seq("report", run, other, "-o", output, "--sentence", "the dog", *goals)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().strip() == str(output)
    data = "Cleaning", "Lengths of", "Vocabulary", "Overlap"
    model = "Scores by length", "Samples", "Attention", "A search", "the dog"
    others = "Time to a score", "never", "Where it comes from"
    text = check(output, *data, *model, *others, "training.warmup_steps", "max_steps: 4")
    assert text.count("A search") == 2
    quick = tmp_path / "quick.html"
    assert seq2seq("report", run, "--quick", "-o", quick).returncode == 0
    assert "Attention" not in check(quick, "Cleaning") and "Vocabulary" not in quick.read_text()


LM = """
task: language_model
data: {{text: {folder}/text.txt, store: {folder}/store}}
tokenizer: {{kind: char}}
model: {{dim: 16, ffn_dim: 32, num_heads: 2, decoder_layers: 1, context: 16, dropout: 0}}
training: {{max_steps: 6, batch_tokens: 200, precision: fp32, warmup_steps: 2, log_every: 2,
  validate_every: 3}}
"""
CLASSIFIER = """
task: classification
data: {{train: {folder}/texts.tsv, dev_size: 20, store: {folder}/store}}
tokenizer: {{vocab_size: 300}}
model: {{dim: 16, ffn_dim: 32, num_heads: 2, encoder_layers: 1, context: 32}}
training: {{max_steps: 4, batch_tokens: 200, precision: fp32, warmup_steps: 2, log_every: 2}}
"""


def trained(tmp_path: Path, recipe: str) -> Path:
    random = np.random.default_rng(0)
    words = ["good", "bad", "film", "<b>", "book", "a", "the"]
    lines = [" ".join(random.choice(words, size=8)) for _ in range(200)]
    (tmp_path / "text.txt").write_text("".join(f"{line}\n" for line in lines))
    rows = [f"{'pos' if 'good' in line else 'neg'}\t{line}\n" for line in lines]
    (tmp_path / "texts.tsv").write_text("".join(rows))
    path = tmp_path / "tiny.yaml"
    path.write_text(recipe.format(folder=tmp_path))
    config = load_config(path)
    train(config, tmp_path / "run")
    return tmp_path / "run"


def test_a_page_about_a_language_model(tmp_path: Path) -> None:
    folder, output = trained(tmp_path, LM), tmp_path / "page.html"
    write_report([folder], output, device="cpu")
    check(output, "Vocabulary", "Samples", "Temperature 0.8")
    assert "Bits per token by position" in output.read_text()


def test_a_page_about_a_classifier(tmp_path: Path, run: Path) -> None:
    folder, output = trained(tmp_path, CLASSIFIER), tmp_path / "page.html"
    write_report([folder], output, device="cpu")
    text = check(output, "Most wrong texts", "probability")
    assert "Confusion matrix" in text
    with pytest.raises(UserError, match="different tasks, classification and translation"):
        write_report([folder, run], output, device="cpu")
    with pytest.raises(UserError, match="does not translate"):
        write_report([folder], output, device="cpu", sentence="x")


def test_a_run_without_metrics_models_or_data_has_a_page(run: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(run / "starts.jsonl", bare)
    shutil.copy(run / "recipe.yaml", bare)
    output = tmp_path / "page.html"
    write_report([bare], output, device="cpu")
    text = output.read_text()
    assert "No metrics have been logged yet" in text and "There are no samples" in text
    moved = tmp_path / "moved"
    shutil.copytree(run, moved, symlinks=True)
    recipe = moved / "recipe.yaml"
    recipe.write_text(re.sub("store: .*", "store: nowhere", recipe.read_text()))
    starts = [json.loads(line) for line in (moved / "starts.jsonl").read_text().splitlines()]
    for start in starts:
        start["data"]["inputs"] = [{"file": "gone", "bytes": 1, "sha256": "0"}]
    (moved / "starts.jsonl").write_text("".join(json.dumps(start) + "\n" for start in starts))
    write_report([moved], output, device="cpu")
    assert "The prepared data are gone" in output.read_text()


def test_a_page_is_written_again_while_the_run_goes_on(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    states = ["running", "running", "finished"]
    monkeypatch.setattr("seq2seq.report.report.time.sleep", slept.append)
    monkeypatch.setattr("seq2seq.report.runs.is_locked", lambda _: states.pop(0) == "running")
    watch_report([run], tmp_path / "page.html", device="cpu", quick=True)
    assert len(slept) == 2 and not states


def test_mistakes_are_one_sentence(run: Path, tmp_path: Path) -> None:
    for arguments, message in [
        ((tmp_path,), "is not a run directory"),
        ((tmp_path / "none",), "is not a run directory"),
        ((run, "-o", run / "recipe.yaml"), "belongs to a run"),
        ((run, "--quick", "-o", tmp_path / "no" / "page.html"), "there is no folder"),
        ((run, "--sentence", ""), "has 0 tokens"),
        ((run, "--sentence", "the dog " * 50), "a search of 1 to 40"),
        ((run, "--sentence", "x", "--quick"), "which --quick leaves out"),
    ]:
        assert message in error("report", *arguments)


def test_a_bar_chart_keeps_the_order_of_its_rows() -> None:
    spec = bar_chart([{"a": "z", "b": 1}, {"a": "y", "b": 2}], "a", "b")
    svg = vl_convert.vegalite_to_svg(spec | {"width": 200})
    assert svg.index(">z<") < svg.index(">y<")
