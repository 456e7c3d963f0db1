"""Training: accumulation, resuming, validation, early stopping, averaging."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from conftest import records, run_recipe, small_shape, torch_engine

from seq2seq.config import Config, DecodingConfig, TrainingConfig
from seq2seq.data.batching import pack_pairs
from seq2seq.data.lines import read_file
from seq2seq.decoding.ctranslate2_engine import CTranslate2Engine
from seq2seq.decoding.engine import Hypothesis, Source
from seq2seq.decoding.translator import Translator
from seq2seq.errors import UserError
from seq2seq.evaluation.evaluate import evaluate_run
from seq2seq.files import sha256_of
from seq2seq.formats.model_directory import load_config
from seq2seq.formats.weights import average_models, load_model
from seq2seq.model.transformer import Transformer
from seq2seq.processes import Processes
from seq2seq.training.log import TrainingLog
from seq2seq.training.loss import ModelLoss
from seq2seq.training.run import train
from seq2seq.training.run_directory import RunDirectory, RunState
from seq2seq.training.update import Updater


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in load_model(folder).model.named_parameters()}


def test_accumulated_micro_batches_equal_one_big_batch(recipe: Path, tmp_path: Path) -> None:
    # Adam divides by the gradient's size: without its epsilon, rounding noise would become steps.
    options = ["model.dropout=0", "training.adam_eps=1e-3"]
    whole = run_recipe(recipe, tmp_path / "1", *options, "training.micro_batch_tokens=100000")
    parts = run_recipe(recipe, tmp_path / "2", *options, "training.micro_batch_tokens=40")
    for one, other in zip(records(whole, "train"), records(parts, "train"), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
    for name, tensor in weights(whole / "last").items():
        torch.testing.assert_close(tensor, weights(parts / "last")[name], rtol=0, atol=1e-6)


def test_the_updater_uses_r_drop_and_a_zero_learning_rate_changes_nothing(
    make_model: Callable[..., Transformer],
) -> None:
    rows = [np.array([5, 6, 7]), np.array([8, 9])]
    batch = pack_pairs(rows, rows, rows)
    model = make_model(dropout=0.3).train()
    before = [parameter.clone() for parameter in model.parameters()]
    torch.manual_seed(3)
    expected = torch.stack(ModelLoss(model, 0.1, alpha=5.0)(batch))
    updater = Updater(model, TrainingConfig(r_drop=5.0), Accelerator(cpu=True), "fp32")
    torch.manual_seed(3)
    result = updater.update([batch], batch.num_labels, 0.0)
    torch.testing.assert_close(result[:2], expected.detach())
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, old)


@pytest.mark.parametrize("clip_norm", [None, 0.01])
def test_the_norm_of_the_gradient_is_that_before_clipping(
    make_model: Callable[..., Transformer], clip_norm: float | None
) -> None:
    rows = [np.array([5, 6, 7]), np.array([8, 9])]
    batch, model = pack_pairs(rows, rows, rows), make_model(dropout=0).train()
    loss, _ = ModelLoss(copy := deepcopy(model), 0.1)(batch)
    (loss / batch.num_labels).backward()
    squares = sum(float(p.grad.square().sum()) for p in copy.parameters() if p.grad is not None)
    training = TrainingConfig(clip_norm=clip_norm, label_smoothing=0.1)
    updater = Updater(model, training, Accelerator(cpu=True), "fp32")
    norm = updater.update([batch], batch.num_labels, 0.0)[2]
    assert float(norm) == pytest.approx(squares**0.5, rel=1e-5)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_a_start_of_zero_stays_zero(optimizer: Any, tied: bool) -> None:
    model = Transformer(small_shape(tied=tied, start="zero"), 13, start_id=2).train()
    training = TrainingConfig(optimizer=optimizer, weight_decay=0.1, label_smoothing=0.1)
    updater = Updater(model, training, Accelerator(cpu=True), "fp32")
    inputs, labels = [np.array([2, 6, 7])], [np.array([6, 7, 3])]
    before = model.target_embedding.weight.detach().clone()
    batch = pack_pairs(labels, inputs, labels)
    for _ in range(3):
        updater.update([batch, batch], 2 * batch.num_labels, 0.1)
    after = model.target_embedding.weight.detach()
    assert not after[2].any()
    assert (after != before).all(dim=1).tolist() == [row != 2 for row in range(13)]


def test_logged_norms_are_means_over_the_updates_that_were_made(
    make_model: Callable[..., Transformer], tmp_path: Path
) -> None:
    training, state = TrainingConfig(), RunState(step=3)
    updater = Updater(make_model(), training, Accelerator(cpu=True), "fp32")
    log = TrainingLog(tmp_path, training, state, updater, Processes())
    for norm in (1.0, math.nan, 3.0):
        log.add(torch.tensor([1.0, 1.0, norm, 1.0]), 4, 8, lr=0.1)
    log.read()
    log = TrainingLog(tmp_path, training, state, updater, Processes())  # as if resumed
    log.training()
    [found] = records(tmp_path, "train")
    assert found["gradient_norm"] == 2.0 and found["loss"] == 2 / 8
    assert found["tokens_per_update"] == 8 and state.totals.updates == 0


def test_the_files_of_a_run(recipe: Path, tmp_path: Path) -> None:
    run = run_recipe(recipe, tmp_path / "run", "training.tensorboard=true")
    assert load_config(run / "recipe.yaml").training.max_steps == 6
    assert (run / "tokenizer.model").exists()
    assert [path.name for path in RunDirectory(run).checkpoints()] == ["step_6"]
    for folder in (run / "best", run / "last", run / "checkpoints" / "step_6"):
        assert (folder / "model.safetensors").exists() and (folder / "model.json").exists()
    assert list(run.rglob("events.out.tfevents*"))
    assert not list(run.rglob("*.tmp")) and not list(run.rglob("*.pt"))
    last = records(run, "train")[-1]
    assert last["step"] == 6 and last["nll"] > 0 and last["loss"] > 0
    assert last["tokens_per_second"] > 0
    validation = records(run, "validation")[-1]
    assert {"nll", "perplexity", "bleu", "chrf"} <= set(validation) and "ter" not in validation


def test_a_finished_run_is_left_as_it_is(recipe: Path, tmp_path: Path) -> None:
    run = run_recipe(recipe, tmp_path / "run")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    run_recipe(recipe, run, "training.log_every=7", "training.max_steps=5", "decoding.beam=8")
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_checkpoints_are_written_on_schedule_and_old_ones_removed(
    recipe: Path, tmp_path: Path
) -> None:
    options = "training.checkpoint_every=2", "training.keep_last=2"
    run = RunDirectory(run_recipe(recipe, tmp_path / "run", *options))
    assert [path.name for path in run.checkpoints()] == ["step_4", "step_6"]
    options = "training.checkpoint_every_epochs=1", "training.max_steps=30"
    epochs = RunDirectory(run_recipe(recipe, tmp_path / "epochs", *options))
    *states, _ = map(RunState.load, epochs.checkpoints())
    expected = [(i + 1, 0) for i in range(len(states))]
    assert [(state.epoch, state.offset) for state in states] == expected and expected


def test_the_average_is_the_mean_of_the_weights(recipe: Path, tmp_path: Path) -> None:
    run = run_recipe(recipe, tmp_path / "run", "training.checkpoint_every=2")
    average_models(RunDirectory(run).models_to_average(2), tmp_path / "mean")
    four, six = (weights(run / "checkpoints" / f"step_{i}") for i in (4, 6))
    for name, tensor in weights(tmp_path / "mean").items():
        torch.testing.assert_close(tensor, (four[name] + six[name]) / 2)
    with pytest.raises(UserError, match="keeps 3 models of this kind, fewer than the 4"):
        RunDirectory(run).models_to_average(4)
    newest = run / "checkpoints" / "step_6" / "training.json"  # as if a signal had caused it
    newest.write_text(newest.read_text().replace('"scheduled": [2, 4, 6]', '"scheduled": [2, 4]'))
    averaged = RunDirectory(run).models_to_average(2)
    assert [path.name for path in averaged] == ["step_2", "step_4"]


def test_the_best_models_are_kept_beside_the_last(recipe: Path, tmp_path: Path) -> None:
    """A NaN score is never the best."""
    scores = [math.nan, 7.0, 3.0, 5.0, math.nan, 4.0]
    options = ["training.validate_every=1", "training.keep_best=3"]
    options += ["training.checkpoint_every=1", "training.keep_last=9"]
    config = load_config(recipe, options)
    run = tmp_path / "run"
    train_with_scores(config, run, scores)
    assert [int(v["best"]) for v in records(run, "validation")] == [0, 1, 0, 0, 0, 0]
    assert sorted(path.name for path in (run / "kept").iterdir()) == ["step_2", "step_4", "step_6"]
    averaged = RunDirectory(run).models_to_average(5, best=2)
    assert [path.name for path in averaged] == ["step_2", "step_4"]
    for step in (2, 4, 6):
        kept, saved = (weights(run / place / f"step_{step}") for place in ("kept", "checkpoints"))
        assert all(torch.equal(tensor, saved[name]) for name, tensor in kept.items())
    assert sha256_of(run / "best/model.safetensors") == sha256_of(
        run / "kept/step_2/model.safetensors"
    )
    with pytest.raises(UserError, match="keeps 3 models of this kind"):
        RunDirectory(run).models_to_average(5, best=4)


def test_learned_positions_must_cover_the_longest_sentence(recipe: Path, tmp_path: Path) -> None:
    options = ["model.positions=learned", "data.clean.max_len=8"]
    with pytest.raises(UserError, match=r"the dev set has a sentence of \d+ tokens"):
        run_recipe(recipe, tmp_path / "short", *options, "model.context=9")
    run = run_recipe(recipe, tmp_path / "long", *options, "model.context=120")
    translator = Translator.load(run)
    table = torch_engine(translator).models[0].encoder.positions.weight
    assert table.shape == (120, 16) and evaluate_run(run, None, "test", Processes())["sentences"]


def train_with_scores(config: Config, run: Path, scores: list[float]) -> RunState:
    """Train with given BLEU scores, one per validation."""

    def evaluate(model: Transformer) -> dict[str, float]:
        return {"bleu": scores.pop(0), "nll": 1.0, "perplexity": 2.7}

    return train(config, run, lambda *_: evaluate)


def test_the_best_model_is_kept_and_patience_ends_the_run(recipe: Path, tmp_path: Path) -> None:
    options = ["training.max_steps=50", "training.validate_every=1", "training.patience=2"]
    options += ["training.checkpoint_every=1", "training.keep_last=50"]
    config = load_config(recipe, options)
    run = tmp_path / "run"
    train_with_scores(config, run, [1.0, 5.0, 3.0, 5.0, 9.0])
    assert [int(v["best"]) for v in records(run, "validation")] == [1, 1, 0, 0]
    best, second = weights(run / "best"), weights(run / "checkpoints" / "step_2")
    assert all(torch.equal(tensor, second[name]) for name, tensor in best.items())


def test_max_minutes_ends_a_run(recipe: Path, tmp_path: Path) -> None:
    run = run_recipe(
        recipe, tmp_path / "run", "training.max_minutes=0.02", "training.max_steps=99999"
    )
    assert 0 < int(RunDirectory(run).checkpoints()[-1].name.removeprefix("step_")) < 99999


def test_the_best_model_may_be_the_one_of_lowest_nll(recipe: Path, tmp_path: Path) -> None:
    options = ["training.best_by=nll", "training.validate_every=2", "training.keep_best=2"]
    run = run_recipe(recipe, tmp_path / "run", *options)
    validations = records(run, "validation")
    assert [line["step"] for line in validations] == [2, 4, 6]
    assert not any("bleu" in line for line in validations)  # nothing is translated
    kept = sorted(validations, key=lambda line: line["nll"])[:2]
    names = {f"step_{line['step']}" for line in kept}
    assert {path.name for path in (run / "kept").iterdir()} == names


def test_validation_sentences_limits_validations(recipe: Path, tmp_path: Path) -> None:
    run = run_recipe(
        recipe, tmp_path / "run", "training.best_by=nll", "training.validation_sentences=3"
    )
    for language in ("en", "de"):
        text = (recipe.parent / f"dev.{language}").read_text().splitlines(keepends=True)
        (recipe.parent / f"three.{language}").write_text("".join(text[:3]))
    own = f"data.dev={recipe.parent}/three", "training.best_by=nll"
    three = run_recipe(recipe, tmp_path / "three", *own)
    nll, expected = (records(each, "validation")[-1]["nll"] for each in (run, three))
    assert nll == pytest.approx(expected, rel=1e-6)


def test_validations_use_validation_beam_and_no_score_has_a_second_search(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches, search = [], CTranslate2Engine.search

    def noted(
        self: CTranslate2Engine, sources: Sequence[Source], decoding: DecodingConfig, **options: Any
    ) -> list[list[Hypothesis]]:
        searches.append((decoding.beam, len(sources), decoding.no_repeat_ngram))
        return search(self, sources, decoding, **options)

    monkeypatch.setattr(CTranslate2Engine, "search", noted)
    options = ["decoding.validation_beam=3", "decoding.beam=2", "decoding.batch_tokens=100"]
    run = run_recipe(recipe, tmp_path / "run", "training.max_steps=2", *options)
    assert searches == [(3, 20, 0)]
    searches.clear()
    evaluate_run(run, None, "dev", Processes())
    assert searches == [(2, 20, 0)]
    searches.clear()
    Translator.load(run).translate(read_file(recipe.parent / "dev.en"))
    assert searches == [(2, 20, 0)]
