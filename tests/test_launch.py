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


def launched(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2"]
    command += map(str, arguments)
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("command", "variable", "value", "feature"),
    [
        ("train", "ACCELERATE_USE_FSDP", "true", "FSDP"),
        ("translate", "ACCELERATE_USE_DEEPSPEED", "true", "DEEPSPEED"),
        ("evaluate", "ACCELERATE_USE_MEGATRON_LM", "true", "MEGATRON_LM"),
        ("classify", "ACCELERATE_USE_PARALLELISM_CONFIG", "true", "PARALLELISM_CONFIG"),
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


def test_a_launch_with_fsdp_ends(recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = launched(
        "--use_fsdp", "--main_process_port", 0, "-m", "seq2seq", "train", recipe, "--run", run
    )
    assert result.returncode == 1 and not run.exists()
    assert "seq2seq: error: seq2seq does not support FSDP" in result.stderr


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


def test_the_recipe_overrides_accelerate(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights after several updates are the same as without the settings."""

    def compiled(*_: object, **__: object) -> None:
        raise AssertionError("the model is compiled")

    monkeypatch.setattr(torch, "compile", compiled)
    sums = []
    for i, environment in enumerate(({}, LAUNCHER_DEFAULTS, OVERRIDDEN)):
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        log, run = tmp_path / f"log{i}", tmp_path / f"run{i}"
        seq2seq(2, log, "train", recipe, "decoding.max_extra=5", "--run", run)
        sums.append(sha256_of(run / "last" / "model.safetensors"))
    assert sums[0] == sums[1] == sums[2]
