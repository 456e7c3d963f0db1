"""Sizes of updates and micro-batches that are measured: `auto`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from conftest import run_recipe

from seq2seq.config import AUTO, to_yaml
from seq2seq.errors import UserError
from seq2seq.model.recipe import load_config
from seq2seq.training import batch_size
from seq2seq.training.batch_size import (
    LARGEST,
    SMALLEST,
    STEP_SHARE,
    Seconds,
    micro_batch,
    update_size,
)
from seq2seq.training.checkpoint import RunState

BOTH = ("training.batch_tokens=auto", "training.micro_batch_tokens=auto")


def test_the_smallest_micro_batch_of_those_that_are_as_fast_is_chosen() -> None:
    assert micro_batch(Seconds({1024: 2e-4, 2048: 1.04e-4, 4096: 1e-4, 8192: 1.3e-4}, 1.0)) == 2048
    assert micro_batch(Seconds({1024: 2e-4, 2048: 1.2e-4, 4096: 1e-4}, 1.0)) == 4096
    assert micro_batch(Seconds({1024: 1e-4}, 1.0)) == 1024


@pytest.mark.parametrize("processes", [1, 4])
def test_the_optimisers_take_their_share_of_an_update(processes: int) -> None:
    seconds = Seconds({1024: 2e-4, 2048: 1e-4}, 0.2)
    size = update_size(seconds, processes)
    share = seconds.step / (seconds.step + size * 1e-4 / processes)
    assert share <= STEP_SHARE < share * (size + 256) / (size - 256)
    assert update_size(Seconds({1024: 1e-4}, 0.0), processes) == SMALLEST
    assert update_size(Seconds({1024: 1e-4}, 100.0), processes) == LARGEST


def test_measured_sizes_are_in_the_run_s_recipe_and_stay(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="seq2seq")
    fixed = Seconds({1024: 1e-4}, 0.1)
    monkeypatch.setattr(batch_size, "measure", lambda *_: fixed)
    run = run_recipe(recipe, tmp_path / "run", *BOTH, "training.max_steps=2")
    found = yaml.safe_load((run / "recipe.yaml").read_text())["training"]
    expected = update_size(fixed, 1)
    assert (found["batch_tokens"], found["micro_batch_tokens"]) == (expected, 1024)
    assert (
        f"measured: training.batch_tokens={expected}, training.micro_batch_tokens=1024"
        in caplog.messages
    )
    monkeypatch.setattr(batch_size, "measure", lambda *_: pytest.fail("measured twice"))
    run_recipe(recipe, run, *BOTH, "training.max_steps=4")
    assert yaml.safe_load((run / "recipe.yaml").read_text())["training"]["max_steps"] == 4
    with (run / "last" / "model.json").open("a") as stream:
        stream.write("\0")
    run_recipe(recipe, run, *BOTH, "training.max_steps=6")
    assert "resuming" in caplog.text and RunState.load(run / "last").step == 6


def test_a_measurement_changes_nothing(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same run with the measured sizes given has the same weights."""
    monkeypatch.setattr(batch_size, "SIZES", (1024, 2048))
    measured = run_recipe(recipe, tmp_path / "a", *BOTH, "training.max_steps=3")
    sizes = yaml.safe_load((measured / "recipe.yaml").read_text())["training"]
    given = [f"training.{key}={sizes[key]}" for key in ("batch_tokens", "micro_batch_tokens")]
    assert sizes["batch_tokens"] >= SMALLEST
    other = run_recipe(recipe, tmp_path / "b", *given, "training.max_steps=3")
    file = Path("last") / "model.safetensors"
    assert (measured / file).read_bytes() == (other / file).read_bytes()


def test_out_of_memory_ends_the_search_for_a_micro_batch(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, sizes = batch_size.Updater.dry_run, []

    def dry_run(self: batch_size.Updater, batch: batch_size.Batch) -> None:
        sizes.append(batch.num_labels)
        if batch.num_labels > 2000:
            raise MemoryError
        original(self, batch)

    monkeypatch.setattr(batch_size.Updater, "dry_run", dry_run)
    monkeypatch.setattr(batch_size, "SIZES", (1024, 16_384))
    run = run_recipe(recipe, tmp_path / "run", BOTH[1], "training.max_steps=1",
                     "training.batch_tokens=20000")  # fmt: skip
    assert (
        yaml.safe_load((run / "recipe.yaml").read_text())["training"]["micro_batch_tokens"] == 1024
    )


def test_auto_is_a_value_of_these_two_keys_only(recipe: Path) -> None:
    config = load_config(recipe, list(BOTH))
    assert (config.training.batch_tokens, config.training.micro_batch_tokens) == (AUTO, AUTO)
    assert "\n  batch_tokens: auto\n  micro_batch_tokens: auto\n" in to_yaml(config)
    for key in ("training.max_steps", "decoding.batch_tokens"):
        with pytest.raises(UserError, match=f"{key}='auto' should be a whole number"):
            load_config(recipe, [f"{key}=auto"])
