"""scripts/gpu_check on a CPU, at tiny sizes: GPUs to run it on are rare."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent.parent / "scripts"))

from gpu_check.__main__ import SCRIPTS, STEPS

ABSENT = ("datasets", "ctranslate2", "py3langid", "vl_convert")
"""Packages that a machine with a GPU may lack."""


def gpu_check(folder: Path, *arguments: str, absent: bool = False) -> list[dict[str, Any]]:
    """Run the script, and return what it prints."""
    environment = dict(os.environ)
    if absent:
        (hidden := folder / "hidden").mkdir()
        for name in ABSENT:
            (hidden / f"{name}.py").write_text(f"raise ImportError('no {name} here')")
        environment["PYTHONPATH"] = str(hidden)
    command = [sys.executable, str(SCRIPTS / "gpu_check"), *arguments]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=400)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_step_runs_without_optional_packages(corpus: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("To be, or not to be, that is the question.\n" * 200)
    # Of steps that differ in a setting only, one.
    left_out = {"base, attention dropout", "big", "decoding, CTranslate2"}
    names = [name for name in STEPS if name not in left_out]
    steps = [part for name in names for part in ("--step", name)]
    options = ["--rehearse", *steps, "--data", str(corpus), "--text", str(text)]
    found = gpu_check(tmp_path, *options, absent=True)
    by_step = {result["step"]: result for result in found}
    assert [*by_step] == names
    assert not any("failed" in result or "left_out" in result for result in found), found
    assert by_step["tests"]["passed"] > 15 and "skipped" not in by_step["tests"]
    for name in ("base", "decoding"):
        assert by_step[name]["tokens_per_second"] > 0
    assert by_step["quick start"]["evaluated"]["bleu"] >= 0
    assert by_step["language model"]["evaluated"]["bits_per_character"] > 0


def test_the_same_weights_are_searched_by_ctranslate2(tmp_path: Path) -> None:
    [result] = gpu_check(tmp_path, "--rehearse", "--step", "decoding, CTranslate2")
    tokens = 30 * result["lines_per_second"]  # rounded to a tenth of a line
    assert result["tokens_per_second"] == pytest.approx(tokens, abs=2, rel=0.01)


def test_a_step_that_takes_too_long_is_ended_and_the_next_one_fails_for_itself(
    tmp_path: Path,
) -> None:
    start = time.monotonic()
    steps = ["--step", "environment", "--step", "big"]
    first, second = gpu_check(tmp_path, *steps, "--rehearse", "--minutes", "0.1")
    assert time.monotonic() - start < 30
    assert first["step"] == "environment"
    assert second["step"] == "big" and "failed" in second


def test_a_missing_gpu_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    [result] = gpu_check(tmp_path, "--step", "environment")
    assert result["failed"] and "no GPU" in result["reason"][-1]
