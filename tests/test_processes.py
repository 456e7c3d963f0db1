"""Real processes, over gloo on the CPU: two do what one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from seq2seq.config import load_config
from seq2seq.evaluation.evaluator import Evaluator
from seq2seq.training.run import train


def test_two_processes_train_like_one(recipe: Path, corpus: Path, tmp_path: Path) -> None:
    # A development sentence longer than the position table makes it grow on the first process.
    for language, word in (("en", "dog"), ("de", "Hund")):
        with (corpus / f"dev.{language}").open("a") as stream:
            stream.write(f"{word} " * 300 + "\n")
    # Adam divides by the gradient's size: without its epsilon, rounding noise would become steps.
    options = [
        "name=pair", "model.dropout=0", "training.adam_eps=1e-3", "training.micro_batch_tokens=60",
        "training.clip_norm=0.5", "training.validate_every=3", "training.checkpoint_every=4",
        "training.max_steps=9", "decoding.max_extra=5",
    ]  # fmt: skip
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
        "-m", "seq2seq", "train", str(recipe), *options,
    ]  # fmt: skip
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, timeout=300
    )
    assert result.returncode == 0, result.stderr.decode()
    assert b"in 2 process(es)" in result.stderr
    train(load_config(recipe, options), tmp_path / "alone", Evaluator.for_training)

    def records(run: Path) -> list[dict[str, float]]:
        return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]

    pairs = list(zip(records(tmp_path / "runs/pair"), records(tmp_path / "alone"), strict=True))
    assert len(pairs) == 5 + 3
    for two, one in pairs:
        assert (two["kind"], two["step"]) == (one["kind"], one["step"])
        assert two["nll"] == pytest.approx(one["nll"], rel=1e-5)
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
