"""Resuming with another recipe, other data or batch sizes; fine-tuning."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from conftest import records as metrics_of
from conftest import run_recipe

from seq2seq.data.training_data import Update
from seq2seq.decoding.translator import Translator
from seq2seq.errors import UserError
from seq2seq.evaluation.evaluate import evaluate_run
from seq2seq.files import sha256_of
from seq2seq.formats.model_directory import load_config
from seq2seq.formats.weights import load_model
from seq2seq.processes import Processes
from seq2seq.training import run as run_module
from seq2seq.training.trainer import Trainer, update_seed


def refusal(recipe: Path, run: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as error:
        run_recipe(recipe, run, "training.max_steps=8", *overrides)
    return str(error.value)


def test_every_changed_key_is_listed_and_the_run_is_left_as_it_was(
    recipe: Path, tmp_path: Path
) -> None:
    run = run_recipe(recipe, tmp_path / "run")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for key, old, new in (
        ("data.train.0.weight", "1.0", "2.0"),
        ("model.dropout", "0.1", "0.3"),
        ("training.lr", "0.01", "0.02"),
        ("training.optimizer", "adam", "muon"),
        ("tokenizer.vocab_size", "340", "350"),
    ):
        override = f"{key.replace('.0.', '.')}={new}"
        message = refusal(recipe, run, override, "data.clean.max_ratio=2", "training.log_every=5")
        assert f"{key} was {old}, is {new}" in message
        assert "log_every" not in message and "max_steps" not in message
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_the_length_of_a_cosine_cannot_change(recipe: Path, tmp_path: Path) -> None:
    run = run_recipe(recipe, tmp_path / "run", "training.schedule=cosine")
    assert "training.max_steps was 6, is 8" in refusal(recipe, run, "training.schedule=cosine")


def test_other_training_text_is_refused(recipe: Path, corpus: Path, tmp_path: Path) -> None:
    model = tmp_path / "own.model"
    run = run_recipe(recipe, tmp_path / "first")
    model.write_bytes((run / "tokenizer.model").read_bytes())
    own = f"tokenizer.models={model}"
    run = run_recipe(recipe, tmp_path / "run", own)
    lines = (corpus / "train.en").read_text().splitlines(keepends=True)
    (corpus / "train.en").write_text("".join(["the tree\n", *lines[1:]]))
    assert "the text of the corpora has changed" in refusal(recipe, run, own)
    # The same text in another place is the same run.
    (corpus / "train.en").write_text("".join(lines))
    for language in ("en", "de"):
        (corpus / f"train.{language}").rename(corpus / f"moved.{language}")
    run_recipe(recipe, run, own, f"data.train={corpus}/moved", "training.max_steps=8")
    assert (run / "checkpoints" / "step_8").exists()


def test_another_split_is_not_evaluated(recipe: Path, corpus: Path, tmp_path: Path) -> None:
    """Changed corpora have other held-out sentences: the model may have seen them."""
    recipe.write_text(recipe.read_text().replace(f"test: {corpus}/test", "test_size: 20"))
    base = run_recipe(recipe, tmp_path / "base")
    run = run_recipe(recipe, tmp_path / "run", f"tokenizer.models=[{base}/tokenizer.model]")
    expected = evaluate_run(run, None, "test", Processes())
    assert expected["sentences"] >= 20
    for language in ("en", "de"):
        path = corpus / f"train.{language}"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        text = "".join([*(f"x {line}" for line in lines), *lines])
        path.write_text(text, encoding="utf-8")
    assert evaluate_run(run, None, "test", Processes()) == expected  # the data prepared before
    shutil.rmtree(corpus / "store")
    with pytest.raises(UserError, match=r"the test set in .* is not the one that .*run was"):
        evaluate_run(run, None, "test", Processes())
    assert evaluate_run(run, None, "dev", Processes())["sentences"] == 20  # a file of its own


def test_evaluation_and_translation_need_no_training_files(
    recipe: Path, corpus: Path, tmp_path: Path
) -> None:
    recipe.write_text(recipe.read_text().replace(f"test: {corpus}/test", "test_size: 20"))
    run, copy = run_recipe(recipe, tmp_path / "run"), tmp_path / "elsewhere" / "copy"
    expected = {split: evaluate_run(run, None, split, Processes()) for split in ("dev", "test")}
    copy.parent.mkdir()
    run.rename(copy)
    for path in (*corpus.glob("*.en"), *corpus.glob("*.de"), *corpus.glob("store/*/train-*")):
        path.unlink()
    for split, metrics in expected.items():
        assert evaluate_run(copy, None, split, Processes()) == metrics
    next(corpus.glob("store/*/dev.arrow")).unlink()
    with pytest.raises(UserError, match=r"dev\.arrow has changed"):
        evaluate_run(copy, None, "dev", Processes())
    shutil.rmtree(corpus / "store")
    with pytest.raises(UserError, match=r"file not found: .*train\.en"):
        evaluate_run(copy, None, "dev", Processes())
    assert not (corpus / "store").exists()
    assert Translator.load(copy).translate(["the dog"])


def test_a_run_resumes_with_changed_free_keys(recipe: Path, tmp_path: Path) -> None:
    run = run_recipe(recipe, tmp_path / "run")
    changed = ["training.max_steps=9", "training.batch_tokens=500", "decoding.beam=2"]
    changed += ["training.micro_batch_tokens=90", "training.validate_every=2"]
    changed += ["training.log_every=1", "training.patience=7", "training.keep_last=2"]
    run_recipe(recipe, run, *changed, "training.checkpoint_every=1")
    assert (run / "checkpoints" / "step_9").exists()
    assert Translator.load(run / "last").decoding.beam == 2


def test_no_sentence_is_lost_or_repeated_when_the_batch_size_changes(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over more than one epoch, the updates use the order exactly once."""
    used: dict[int, list[int]] = {}
    orders: dict[int, list[int]] = {}
    step = Trainer.update

    def noted(trainer: Trainer, update: Update) -> None:
        epoch, offset = trainer.state.epoch, trainer.state.offset
        order = trainer.data.examples.order(trainer.data.seed, epoch).tolist()
        end = update.next_offset if update.next_epoch == epoch else len(order)
        used.setdefault(epoch, []).extend(order[offset:end])
        orders[epoch] = order
        step(trainer, update)

    monkeypatch.setattr(Trainer, "update", noted)
    for steps, tokens in ((4, 300), (9, 170), (13, 777), (18, 300)):
        overrides = f"training.max_steps={steps}", f"training.batch_tokens={tokens}"
        run_recipe(recipe, tmp_path / "run", *overrides)
    assert len(used) > 1
    for epoch, numbers in used.items():
        assert numbers == orders[epoch][: len(numbers)]
        if epoch < max(used):
            assert sorted(numbers) == list(range(300))


def test_fine_tuning_starts_from_weights_and_tokenizer(recipe: Path, tmp_path: Path) -> None:
    base = run_recipe(recipe, tmp_path / "base", "model.norm=pre", "model.dropout=0.2")
    lines = recipe.read_text().splitlines()
    short = [line for line in lines if not line.startswith(("model:", "tokenizer:"))]
    tune = tmp_path / "tune.yaml"
    tune.write_text("\n".join(short))
    start = f"training.init_from={base}"
    short_run = "training.lr=1e-30", "training.seed=3", "training.max_steps=1"
    run = run_recipe(tune, tmp_path / "tuned", start, *short_run)
    config = load_config(run / "recipe.yaml").model
    assert (config.norm, config.dim, config.dropout) == ("pre", 16, 0.2)
    assert sha256_of(run / "tokenizer.model") == sha256_of(base / "tokenizer.model")
    old, new = (load_model(folder).model.state_dict() for folder in (base / "best", run / "last"))
    assert all(torch.equal(old[name], new[name]) for name in old)
    changed = run_recipe(tune, tmp_path / "changed", start, "model.dropout=0.4")
    assert load_config(changed / "recipe.yaml").model.dropout == 0.4
    run_recipe(tune, changed, start, "model.dropout=0.4", "training.max_steps=8")  # it resumes
    base.rename(tmp_path / "gone")
    assert evaluate_run(changed, None, "dev", Processes())["sentences"] == 20
    (tmp_path / "gone").rename(base)
    with pytest.raises(UserError, match=r"model\.dim=32, but the initial model .* has 16"):
        load_config(tune, [start, "model.dim=32"])
    with pytest.raises(UserError, match="no such run or model directory"):
        load_config(tune, ["training.init_from=nowhere"])


def test_a_run_from_a_model_is_validated_once_before_its_first_update(
    recipe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="seq2seq")
    base = run_recipe(recipe, tmp_path / "base")
    tuning = f"training.init_from={base}", "training.best_by=nll"
    run = run_recipe(recipe, tmp_path / "run", *tuning)
    assert f"new run, initialised from {base} (step_6)" in caplog.messages
    [first, *_] = metrics_of(run, "validation")
    before = evaluate_run(base, None, "dev", Processes())
    assert (first["step"], first["nll"]) == (0, pytest.approx(before["nll"], abs=1e-5))
    run_recipe(recipe, run, *tuning, "training.max_steps=8")
    assert [each["step"] for each in metrics_of(run, "validation")].count(0) == 1


def test_a_start_is_recorded(recipe: Path, tmp_path: Path) -> None:
    run = run_recipe(recipe, tmp_path / "run")
    run_recipe(recipe, run, "training.max_steps=8")
    starts = [json.loads(line) for line in (run / "starts.jsonl").read_text().splitlines()]
    assert [start["step"] for start in starts] == [0, 6]
    first = starts[0]
    assert first["packages"]["torch"] == version("torch") and first["packages"]["seq2seq"]
    assert first["seed"] == 1 and first["processes"] == 1 and first["device"]
    files = {Path(entry["file"]).name: entry["sha256"] for entry in first["data"]["inputs"]}
    assert files["train.en"] == sha256_of(tmp_path / "train.en")
    assert first["data"]["tokenizer"] == sha256_of(run / "tokenizer.model")
    assert "commit" in first


def test_a_run_resumes_in_another_precision(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Simulate another machine, on which `auto` selects another precision."""
    caplog.set_level("INFO", "seq2seq")
    for steps, precision in ((4, "bf16"), (8, "fp32")):
        AcceleratorState._reset_state(reset_partial_state=True)
        monkeypatch.setattr(run_module, "resolve_precision", lambda *_, chosen=precision: chosen)
        overrides = "training.precision=auto", f"training.max_steps={steps}"
        run = run_recipe(recipe, tmp_path / "run", *overrides)
        assert f"{precision} on cpu" in caplog.text
    starts = [json.loads(line) for line in (run / "starts.jsonl").read_text().splitlines()]
    assert [start["precision"] for start in starts] == ["bf16", "fp32"]


def test_seeds_differ_by_update_and_process() -> None:
    seeds = {update_seed(1, step, process) for step in range(50) for process in range(4)}
    assert len(seeds) == 200 and update_seed(1, 3, 2) != update_seed(2, 3, 2)
