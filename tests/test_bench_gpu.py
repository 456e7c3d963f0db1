"""scripts/bench_gpu.py on a CPU, at a small size: GPUs to run it on are rare."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import small_shape

sys.path.append(str(Path(__file__).parent.parent / "scripts"))

import bench_gpu
import bench_memory


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the model and its work small, and the peak quick to measure."""
    monkeypatch.setattr(bench_memory, "SHAPES", dict.fromkeys(("base", "big"), small_shape()))
    monkeypatch.setattr(bench_memory, "VOCABULARY", 300)
    monkeypatch.setattr(bench_gpu, "VOCABULARY", 300)
    monkeypatch.setattr(bench_gpu, "SENTENCES", 4)
    monkeypatch.setattr(bench_gpu, "peak_matmul_flops", lambda *_: 1e9)
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)


def test_a_failing_row_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(script: str, *arguments: str) -> Any:
        if "big" in arguments and arguments[-1] == "off":
            return {"failed": ["out of memory"]}
        return bench_memory.measure(arguments[1], 50, 1, arguments[-1] == "on", 1)

    monkeypatch.setattr(bench_gpu, "run", run)
    rows = list(bench_gpu.training())
    assert [(row["shape"], row["checkpointing"]) for row in rows] == [
        ("base", "off"), ("base", "on"), ("big", "off"), ("big", "on"),
    ]  # fmt: skip
    assert ["failed" in row for row in rows] == [False, False, True, False]
    assert all(row["mfu"] > 0 for row in rows if "failed" not in row)


def test_several_gpus_are_compared_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {"1": 100.0, "2": 180.0, "3": 240.0}

    def run(script: str, *arguments: str) -> Any:
        speed = speeds[arguments[-1]]
        return {"distributed": [{"processes": arguments[-1], "tokens_per_second": speed}]}

    monkeypatch.setattr(bench_gpu, "run", run)
    monkeypatch.setattr("torch.accelerator.device_count", lambda: 3)
    assert [row["efficiency"] for row in bench_gpu.cards()] == pytest.approx([1.0, 0.9, 0.8])


def test_decoding_is_measured_to_its_full_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_gpu, "run", lambda *_: {"characters_per_second": 1.0})
    rows = list(bench_gpu.decoding())
    assert [row.get("beam") for row in rows] == [1, 4, None]
    assert all(row["tokens_per_second"] > 0 for row in rows[:2])


def test_a_missing_gpu_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["bench_gpu.py"])
    with pytest.raises(SystemExit):
        bench_gpu.main()
    assert "no CUDA GPU" in capsys.readouterr().err
