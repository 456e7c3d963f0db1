"""Training in fp16: the loss scale, overflows, resuming; which devices train in which precision."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import check_devices
import pytest
import torch
from accelerate import Accelerator
from conftest import records, run_recipe
from torch import Tensor

from seq2seq.config import TrainingConfig
from seq2seq.errors import UserError
from seq2seq.files import sha256_of
from seq2seq.machine import precision
from seq2seq.machine.precision import Precision, resolve_precision
from seq2seq.processes import Processes
from seq2seq.training import run
from seq2seq.training.loss import smoothed_cross_entropy
from seq2seq.training.run_directory import RunState
from seq2seq.training.update import Updater

FP16 = "training.precision=fp16"


def make_updater(
    task: str = "translation", kind: Precision = "fp16", **training: Any
) -> tuple[Updater, Any]:
    torch.manual_seed(1)
    # Not ReLU: a unit that is off in one precision only has a gradient in the other only.
    cpu = torch.device("cpu")
    model, batch = check_devices.build(task, cpu, norm="post", activation="gelu")
    accelerator = Accelerator(mixed_precision="no", cpu=True)
    updater = Updater(model, TrainingConfig(**training), accelerator, kind)
    updater.scaler.scale(torch.ones(()))  # creates the scale
    return updater, batch


def note_gradients(
    parameters: list[torch.nn.Parameter], found: list[list[Tensor]]
) -> Callable[..., None]:
    def hook(*_: object) -> None:
        found.append([p.grad.clone() for p in parameters if p.grad is not None])

    return hook


def update(updater: Updater, batch: Any) -> Tensor:
    return updater.update([batch, batch], 2 * batch.num_labels, 0.001)


@pytest.mark.parametrize("task", check_devices.FAMILIES)
@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_the_gradient_is_nearly_that_of_fp32(task: str, optimizer: str) -> None:
    """With R-Drop too; the loss scale leaves no trace in it."""
    gradients: list[list[Tensor]] = []
    for kind in ("fp32", "fp16"):
        updater, batch = make_updater(task, kind, optimizer=optimizer, r_drop=1.0)
        parameters = list(updater.model.parameters())
        updater.optimizers[0].register_step_pre_hook(note_gradients(parameters, gradients))
        before = [p.detach().clone() for p in parameters]
        assert update(updater, batch)[2].isfinite()
        assert not any(map(torch.equal, before, parameters))
    for exact, rounded in zip(gradients[0], gradients[-1], strict=True):
        assert rounded.dtype == torch.float32
        assert (rounded - exact).norm() <= 0.02 * exact.norm() + 1e-4


def test_a_frequent_word_does_not_overflow_the_loss() -> None:
    """2,048 rows that predict one word: a sum that fp16 cannot hold, whatever the loss scale."""
    hidden = torch.zeros(2048, 4)
    hidden[:, 0] = 40.0
    gradients = []
    for dtype in (torch.float32, torch.float16):
        weight = torch.tensor([[1.0, 0, 0, 0], *[[0.0] * 4] * 4], requires_grad=True)
        with torch.autocast("cpu", dtype, enabled=dtype == torch.float16):
            loss, _ = smoothed_cross_entropy(
                hidden, weight, torch.ones(2048, dtype=torch.int64), 2048, 0.1
            )
        loss.backward()
        gradients.append(weight.grad)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=2e-3, atol=1.0)


def scaler(**options: Any) -> AbstractContextManager[Any]:
    """Let updaters have another loss scale."""
    return patch("torch.amp.GradScaler", partial(torch.amp.GradScaler, **options))


def test_overflows_are_counted_apart_and_end_no_run(recipe: Path, tmp_path: Path) -> None:
    """Even if only one skipped update in a row is allowed."""
    options = (FP16, "training.max_skipped=1", "training.max_steps=12", "training.log_every=4")

    with scaler(init_scale=2.0**127):
        run = run_recipe(recipe, tmp_path / "run", *options)
    [*_, last] = records(run, "train")
    assert last["overflows"] >= 3 and last["skipped"] == 0
    assert last["loss_scale"] == 2.0 ** (127 - last["overflows"])
    state = RunState.load(run / "checkpoints" / "step_12")
    assert (state.step, state.overflows) == (12, last["overflows"])
    assert state.loss_scale["scale"] == last["loss_scale"]


def test_nan_ends_an_fp16_run_when_the_scale_has_fallen(recipe: Path, tmp_path: Path) -> None:
    options = [FP16, "training.lr=1e30", "training.warmup_steps=1", "training.max_skipped=3"]
    options += ["training.max_steps=60", "training.log_every=1"]
    with pytest.raises(UserError, match="not finite in 3 consecutive updates"):
        run_recipe(recipe, tmp_path / "run", *options)
    [*_, last] = records(tmp_path / "run", "train")
    assert last["overflows"] >= 16 and last["loss_scale"] <= 1


def test_a_resumed_run_equals_an_uninterrupted_one(recipe: Path, tmp_path: Path) -> None:
    """The scale is doubled once in each, after the resume of one."""
    options = (FP16, "training.checkpoint_every=5", "training.log_every=5")
    with scaler(init_scale=2.0**9, growth_interval=7):
        whole = run_recipe(recipe, tmp_path / "whole", *options, "training.max_steps=10")
        parts = run_recipe(recipe, tmp_path / "parts", *options, "training.max_steps=5")
        run_recipe(recipe, parts, *options, "training.max_steps=10")
    scales = [records(run, "train")[-1]["loss_scale"] for run in (whole, parts)]
    assert scales == [2.0**10, 2.0**10]
    for file in ("model.safetensors", "training.safetensors"):
        sums = {sha256_of(run / "checkpoints" / "step_10" / file) for run in (whole, parts)}
        assert len(sums) == 1


@pytest.mark.parametrize(
    ("device", "bf16", "fp16", "expected"),
    [
        ("cuda", 8.0, 8.0, "bf16"),  # A100
        ("cuda", 0.0, 4.0, "fp16"),  # no bf16
        ("cuda", 1.5, 6.0, "fp16"),  # bf16 is emulated
        ("cuda", 1.1, 1.1, "fp32"),
        ("cpu", 2.0, 0.0, "bf16"),
        ("cpu", 1.1, 9.0, "fp32"),
    ],
)
def test_auto_chooses_the_fastest_precision(
    device: str, bf16: float, fp16: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds = {torch.float32: 1.0, torch.bfloat16: bf16, torch.float16: fp16}

    def flops(_: torch.device, dtype: torch.dtype, size: int) -> float:
        if not speeds[dtype]:
            raise RuntimeError("not supported")
        return speeds[dtype]

    monkeypatch.setattr(precision, "matmul_flops", flops)
    assert resolve_precision("auto", torch.device(device)) == expected
    monkeypatch.setattr(precision, "describe_device", lambda _: "some GPU")
    if not bf16:
        with pytest.raises(UserError, match=r"training\.precision=bf16: some GPU does not"):
            resolve_precision("bf16", torch.device(device))


@pytest.mark.parametrize(
    ("found", "expected"),
    [(["bf16", "bf16"], "bf16"), (["bf16", "fp16"], "fp16"), (["fp16", "fp32", "bf16"], "fp32")],
)
def test_processes_agree_on_what_all_of_their_devices_have(
    found: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products in fp32 use TF32 unless fp32 is asked for."""
    used: list[str] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", used.append)
    monkeypatch.setattr(run, "resolve_precision", lambda *_: found[0])
    monkeypatch.setattr(Processes, "all_gather", lambda *_: found)
    gpu = Processes(device="cuda")
    assert run._precision(TrainingConfig(), gpu) == expected
    run._precision(TrainingConfig(precision="fp32"), gpu)
    run._precision(TrainingConfig(precision="fp32"), Processes())
    assert used == ["high", "highest"]
