"""`seq2seq runs`: what runs are, from their files alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from commands import seq2seq

from seq2seq.processes import Processes
from seq2seq.report.runs import RunRecord, differences, find_runs, read_run
from seq2seq.training.records import METRICS_FILE, drop_metrics_after
from seq2seq.training.run_directory import locked


@pytest.fixture
def runs(run: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    for name in ("a", "b/second", "damaged", "stopped"):
        shutil.copytree(run, folder / name, symlinks=True)

    def change(name: str, old: str, new: str) -> None:
        recipe = folder / name / "recipe.yaml"
        assert old in recipe.read_text()
        recipe.write_text(recipe.read_text().replace(old, new))

    change("b/second", "warmup_steps: 2", "warmup_steps: 3")
    change("stopped", "max_steps: 4", "max_steps: 400")
    (folder / "damaged/recipe.yaml").write_text("model: {dimm: 3}")
    (folder / "no_run").mkdir()
    (folder / "a_file").write_text("x")
    return folder


def test_runs_are_found_with_their_states(runs: Path) -> None:
    found = {str(each.path.relative_to(runs)): each for each in find_runs(runs)}
    states = {"a": "finished", "b/second": "finished", "damaged": "damaged", "stopped": "stopped"}
    assert {name: each.status for name, each in found.items()} == states
    assert all(each.updates == 4 for each in found.values())
    best = json.loads((runs / "a/last/training.json").read_text())["best_score"]
    assert found["a"].main_metric == "bleu" and found["a"].best_score == pytest.approx(best)
    assert "unknown key" in str(found["damaged"].problem)
    assert differences([found["a"], found["b/second"]]) == [None, {"training.warmup_steps": 3}]


def test_a_run_is_running_while_it_is_locked(runs: Path) -> None:
    with locked(runs / "a", Processes()):
        assert read_run(runs / "a").status == "running"
    assert read_run(runs / "a").status == "finished"


def test_recipes_are_compared_with_the_first_of_the_task(runs: Path) -> None:
    for name in ("a", "b/second", "stopped"):
        shutil.move(str(runs / name), str(runs / f"z{name.replace('/', '_')}"))
    records = find_runs(runs)  # the damaged one is the first now
    assert [each.path.name for each in records] == ["damaged", "za", "zb_second", "zstopped"]
    keys = [None if each is None else [*each] for each in differences(records)]
    assert keys == [None, None, ["training.warmup_steps"], ["training.max_steps"]]


def test_the_table_and_json_have_the_same(runs: Path) -> None:
    table = seq2seq("runs", runs).stdout.decode().splitlines()
    listed = json.loads(seq2seq("runs", runs, "--json").stdout)
    assert len(table) == 5 and len(listed) == 4
    for line, tree in zip(table[1:], listed, strict=True):
        assert tree["run"].endswith(line.split()[0]) and tree["status"] in line
    assert "training.warmup_steps=3" in table[2] and "unknown key" in table[3]


def test_several_folders_and_runs_are_in_one_table(runs: Path) -> None:
    table = seq2seq("runs", runs / "stopped", runs / "b").stdout.decode().splitlines()
    assert [line.split()[0] for line in table[1:]] == [f"{runs}/stopped", f"{runs}/b/second"]


@pytest.mark.parametrize(
    ("metric", "best"),
    [("nll", 1.0), ("bleu", 3.0), ("bits_per_character", 1.0), ("accuracy", 3.0)],
)
def test_the_best_score_is_the_lowest_or_the_highest(metric: str, best: float) -> None:
    found = [{"kind": "validation", "step": i, "nll": 0.0, metric: float(i)} for i in (1, 3, 2)]
    record = RunRecord(Path("run"), "finished", metrics=found)
    assert (record.main_metric, record.best_score) == (metric, best)


def test_metrics_that_a_resumed_run_writes_again_are_dropped(tmp_path: Path) -> None:
    """A checkpoint may come before the validation or the average of its own update."""
    kinds = ("train", "validation", "average")
    records = [{"kind": kind, "step": step} for step in (2, 4, 6) for kind in kinds]
    text = "".join(f"{json.dumps(record)}\n" for record in records)
    (tmp_path / METRICS_FILE).write_text(f'{text}{{"kind": "train", "st')
    drop_metrics_after(tmp_path, train=4, validation=2, average=-1)
    kept = map(json.loads, (tmp_path / METRICS_FILE).read_text().splitlines())
    expected = [("train", 2), ("validation", 2), ("train", 4)]
    assert [(record["kind"], record["step"]) for record in kept] == expected


def test_hidden_folders_and_folders_of_a_run_hold_no_runs(runs: Path) -> None:
    for copy in (".hidden/copy", "a/checkpoints/old"):
        shutil.copytree(runs / "stopped", runs / copy, symlinks=True)
    assert len(find_runs(runs)) == 4
