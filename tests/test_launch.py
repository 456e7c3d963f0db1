"""What Accelerate's launcher asks for is refused, or overridden by the recipe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from commands import ENVIRONMENT
from forked import seq2seq

from seq2seq.cli import main
from seq2seq.files import sha256_of


@pytest.mark.parametrize(
    ("command", "feature"),
    [
        ("train", "FSDP"),
        ("translate", "DEEPSPEED"),
        ("evaluate", "MEGATRON_LM"),
        ("classify", "PARALLELISM_CONFIG"),
    ],
)
def test_every_command_of_several_processes_refuses_what_is_no_copy_of_the_model(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, command: str, feature: str
) -> None:
    monkeypatch.setenv(f"ACCELERATE_USE_{feature}", "true")
    with pytest.raises(SystemExit, match=f"does not support {feature}"):
        main([command, str(recipe if command == "train" else recipe.parent)])


def test_a_launch_with_fsdp_ends(recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    launch = "-m accelerate.commands.launch --num_processes 2 --use_fsdp --main_process_port 0"
    train = ["-m", "seq2seq", "train", str(recipe), "--run", str(run)]
    command = [sys.executable, *launch.split(), *train]
    result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert result.returncode == 1 and not run.exists()
    assert "seq2seq: error: seq2seq does not support FSDP" in result.stderr


OVERRIDDEN = {
    "ACCELERATE_MIXED_PRECISION": "fp16",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
    "ACCELERATE_DYNAMO_BACKEND": "INDUCTOR",
}


def test_the_recipe_overrides_accelerate(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights after several updates are the same as without the settings."""

    def compiled(*_: object, **__: object) -> None:
        raise AssertionError("the model is compiled")

    monkeypatch.setattr(torch, "compile", compiled)
    sums = []
    for i, environment in enumerate(({}, OVERRIDDEN)):
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        log, run = tmp_path / f"log{i}", tmp_path / f"run{i}"
        seq2seq(2, log, "train", recipe, "decoding.max_extra=5", "--run", run)
        sums.append(sha256_of(run / "last" / "model.safetensors"))
    assert sums[0] == sums[1]
