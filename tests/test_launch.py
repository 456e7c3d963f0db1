"""What Accelerate's launcher asks for is refused, or overridden by the recipe."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from commands import ENVIRONMENT
from forked import in_child, in_processes, seq2seq
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from seq2seq.cli import main
from seq2seq.files import sha256_of
from seq2seq.model.transformer import Network
from seq2seq.training.update import Updater


def launched(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2"]
    command += map(str, arguments)
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("command", "variable", "value", "feature"),
    [
        ("train", "ACCELERATE_USE_FSDP", "true", "FSDP"),
        ("translate", "ACCELERATE_USE_DEEPSPEED", "true", "DeepSpeed"),
        ("evaluate", "ACCELERATE_USE_MEGATRON_LM", "true", "Megatron-LM"),
        ("classify", "ACCELERATE_USE_PARALLELISM_CONFIG", "true", "tensor, context or sequence"),
        ("generate", "ACCELERATE_MIXED_PRECISION", "fp8", "fp8"),
    ],
)
def test_every_command_of_several_processes_refuses_what_is_no_copy_of_the_model(
    recipe: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    variable: str,
    value: str,
    feature: str,
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit, match=f"does not support {feature}"):
        main([command, str(recipe if command == "train" else recipe.parent)])


def test_xla_is_refused(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelerate.utils.is_torch_xla_available", lambda: True)
    with pytest.raises(SystemExit, match="set USE_TORCH_XLA=0"):
        main(["train", str(recipe)])


def test_a_launch_with_fsdp_ends(recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = launched(
        "--use_fsdp", "--main_process_port", 0, "-m", "seq2seq", "train", recipe, "--run", run
    )
    assert result.returncode == 1 and not run.exists()
    assert "seq2seq: error: seq2seq does not support FSDP" in result.stderr


def test_a_launch_that_starts_one_process_of_several_says_so(tmp_path: Path) -> None:
    result = launched("--cpu", "-m", "seq2seq", "translate", tmp_path)
    assert result.stderr.count("accelerate launch has started one process") == 1


LAUNCHER_DEFAULTS = {
    "ACCELERATE_MIXED_PRECISION": "no",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "1",
    "ACCELERATE_DYNAMO_BACKEND": "NO",
}
OVERRIDDEN = {
    "ACCELERATE_MIXED_PRECISION": "fp16",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
    "ACCELERATE_DYNAMO_BACKEND": "INDUCTOR",
}


def test_the_recipe_overrides_accelerate_with_a_warning(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights after several updates are the same as without the settings."""

    def compiled(*_: object, **__: object) -> None:
        raise AssertionError("the model is compiled")

    monkeypatch.setattr(torch, "compile", compiled)
    sums, warnings = [], []
    for i, environment in enumerate(({}, LAUNCHER_DEFAULTS, OVERRIDDEN)):
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        log, run = tmp_path / f"log{i}", tmp_path / f"run{i}"
        text = seq2seq(2, log, "train", recipe, "decoding.max_extra=5", "--run", run)
        warnings.append(text.count("has no effect"))
        sums.append(sha256_of(run / "last" / "model.safetensors"))
    assert warnings == [0, 0, 3] and sums[0] == sums[1] == sums[2]


def record_gradients(file: Path) -> None:
    """Write the gradients before each optimiser step, of one process, to a file."""
    models: list[Network] = []
    steps: list[dict[str, Any]] = []
    make, update = Updater.__init__, Updater.update

    def watched(updater: Updater, model: Network, *arguments: Any) -> None:
        make(updater, model, *arguments)
        models.append(model)
        if isinstance(wrapped := updater.loss, DistributedDataParallel):
            assert wrapped.gradient_as_bucket_view and not wrapped.find_unused_parameters
            assert not list(wrapped.buffers())

    def record(optimizer: torch.optim.Optimizer, *_: object) -> None:
        if models and optimizer.param_groups[0]["lr"]:
            grads = {}
            for name, parameter in models[0].named_parameters():
                assert parameter.grad is not None
                grads[name] = parameter.grad
            storages = {grad.untyped_storage().data_ptr() for grad in grads.values()}
            copies = {name: grad.clone() for name, grad in grads.items()}
            steps.append({"gradients": copies, "storages": len(storages)})

    def saved(*arguments: Any) -> Any:
        result = update(*arguments)
        torch.save(steps, f"{file}.{os.environ.get('RANK', '0')}")
        return result

    register_optimizer_step_pre_hook(record)
    patch.multiple(Updater, __init__=watched, update=saved).start()


@pytest.mark.parametrize(
    "option",
    [
        "training.micro_batch_tokens=60",
        "training.micro_batch_tokens=300",
        "training.batch_tokens=1",  # one sentence: the second process has none
    ],
)
def test_gradients_of_two_processes_are_views_of_buckets_and_equal_those_of_one(
    recipe: Path, tmp_path: Path, option: str
) -> None:
    options = ["model.dropout=0", "training.adam_eps=1e-3", "decoding.max_extra=5"]
    options += ["training.gradient_checkpointing=true", option]

    def work(name: str) -> Callable[[], None]:
        def train() -> None:
            record_gradients(tmp_path / name)
            main(["train", str(recipe), *options, "--run", str(tmp_path / f"run_{name}")])

        return train

    log = tmp_path / "log"
    assert in_processes(2, work("two"), log) == [0, 0], log.read_text()
    assert in_child(work("one")) == 0
    first, second, one = (torch.load(tmp_path / f) for f in ("two.0", "two.1", "one.0"))
    assert len(first) == len(second) == len(one) == 6
    for a, b, expected in zip(first, second, one, strict=True):
        assert a["storages"] == b["storages"] == 1  # zero_grad does not undo the views
        for name, gradient in expected["gradients"].items():
            scale = float(gradient.abs().max())
            assert torch.equal(a["gradients"][name], b["gradients"][name])
            torch.testing.assert_close(a["gradients"][name], gradient, rtol=0, atol=1e-5 * scale)
