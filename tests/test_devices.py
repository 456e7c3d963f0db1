"""Precision and devices: no half precision with fp32, no synchronisation in updates."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from conftest import VOCABULARY, run_recipe
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from seq2seq.config import DecodingConfig, ModelConfig
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.engine import Source
from seq2seq.decoding.generation import TextGenerator
from seq2seq.decoding.rules import MinLength, NoRepeatNgram, Prefix, Sampler, Sampling
from seq2seq.decoding.search import BeamState, Rule
from seq2seq.decoding.torch_engine import TorchEngine
from seq2seq.decoding.translator import Translator
from seq2seq.evaluation.evaluate import evaluate_run
from seq2seq.machine import devices, precision
from seq2seq.machine.precision import (
    resolve_precision,
)
from seq2seq.model.transformer import Transformer
from seq2seq.processes import Processes

CPU = torch.device("cpu")
HALF = (torch.bfloat16, torch.float16)


def script(name: str) -> ModuleType:
    path = Path(__file__).parent.parent / "scripts" / f"{name}.py"
    spec = util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check_devices = script("check_devices")


class HalfPrecision(TorchDispatchMode):
    """Records the operators with a half-precision input or output."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, Tensor)]
        if any(tensor.dtype in HALF for tensor in tensors):
            self.seen.add(str(func))
        return result


@contextmanager
def no_half_precision() -> Iterator[None]:
    with HalfPrecision() as half:
        yield
    assert half.seen == set()


def test_an_fp32_run_has_no_half_precision_tensor(recipe: Path, tmp_path: Path) -> None:
    options = ["training.optimizer=muon", "training.validate_every=3", "decoding.precision=fp32"]
    options += ["training.average_last=2", "training.checkpoint_every=3", "model.tied=false"]
    options += ["training.gradient_checkpointing=true", "model.attention_dropout=0.1"]
    with no_half_precision():
        run_recipe(recipe, tmp_path / "run", *options)


def test_decoding_is_in_fp32_after_bf16_training(recipe: Path, tmp_path: Path) -> None:
    options = "training.precision=bf16", "decoding.precision=fp32"
    run = run_recipe(recipe, tmp_path / "run", *options)
    with no_half_precision():
        Translator.load(run).translate(["a house", "", "b"])
        evaluate_run(run, None, "dev", Processes())


def test_generation_and_classification_have_no_half_precision_tensor() -> None:
    tokenizer = check_devices.Tokenizer(check_devices.ALPHABET, check_devices.ALPHABET)
    model, _ = check_devices.build("language_model", CPU)
    classifier, batch = check_devices.build("classification", CPU)
    generator = TextGenerator(model.eval(), tokenizer)
    with no_half_precision(), torch.inference_mode():
        list(generator.generate("ab", length=20, sampling=Sampling(), seed=1))
        classifier.output(classifier.eval()(*batch.inputs))


def test_auto_selects_the_faster_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_precision("fp32", CPU) == "fp32" and resolve_precision("bf16", CPU) == "bf16"
    speeds = {torch.float32: 100.0}
    monkeypatch.setattr(precision, "matmul_flops", lambda _, dtype, size: speeds[dtype])
    for bf16, expected in ((200.0, "bf16"), (110.0, "fp32"), (1.3, "fp32")):
        speeds[torch.bfloat16] = bf16
        assert resolve_precision("auto", CPU) == expected


def test_a_run_has_the_precision_that_was_resolved(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("seq2seq.training.run.resolve_precision", lambda *_: "bf16")
    with HalfPrecision() as half, caplog.at_level("INFO"):
        run_recipe(recipe, tmp_path / "run", "training.precision=auto", "training.optimizer=muon")
    assert {"aten.addmm.default", "aten.baddbmm.default"} <= half.seen
    assert "bf16 on cpu" in caplog.text


def test_nothing_is_read_from_the_device() -> None:
    check_devices.check(torch.device("meta"), "fp32")


@pytest.mark.parametrize(
    "rule",
    [
        MinLength(3, 1),
        Prefix([[3], [4, 5]]),
        NoRepeatNgram(2),
        Sampler(Sampling(0.8, top_k=3, top_p=0.9), [[1], [2]]),
    ],
)
def test_rules_read_nothing_from_the_device(rule: Rule) -> None:
    """All but those of terms, which look for words in the text of the hypotheses."""
    width = 1 if isinstance(rule, Sampler) else 2
    tokens = np.array([[[0, 4, 5, 4]] * width, [[0, 5, 5, 5]] * width])
    log_probs, values = (
        torch.empty(2, width, device="meta"),
        torch.empty(2, width, 8, device="meta"),
    )
    with check_devices.HostReads() as reads:
        ranked = rule(BeamState(np.array([0, 1]), tokens, log_probs), values)
    assert ranked.device.type == "meta" and not reads.seen


@pytest.mark.parametrize(
    ("options", "nbest", "count"),
    [
        ({"beam": 4}, 1, 1024),
        ({"beam": 1, "sample": True}, 8, 512),
        ({"beam": 4, "batch_tokens": 400}, 1, 10),
        ({"beam": 32}, 1, 128),
    ],
)
def test_a_batch_on_a_gpu_has_at_most_4096_hypotheses(
    options: dict[str, Any], nbest: int, count: int
) -> None:
    with torch.device("meta"):
        model = Transformer(ModelConfig(dim=8, ffn_dim=8, num_heads=2), VOCABULARY.size)
    engine = TorchEngine([model], Tokenizer(VOCABULARY, VOCABULARY), 100)
    sources = [Source(["a"] * 9) for _ in range(2000)]
    first = next(engine._batches(sources, DecodingConfig(**options), nbest))
    assert len(first) == count


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="needs torch without CUDA")
@pytest.mark.skipif(not shutil.which(os.environ.get("CXX", "c++")), reason="needs a C++ compiler")
def test_updates_on_a_fake_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward, with a loss scale: flash attention, and attention in rows."""
    options = ["--device=cuda", "--precision=fp16", "--shape=tiny", "--few"]
    monkeypatch.setattr(sys, "argv", [check_devices.__file__, *options])
    with patch("subprocess.run") as started, pytest.raises(SystemExit):
        check_devices.main()  # which starts itself again, with a fake library
    done = subprocess.run(*started.call_args.args, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if "operators per update" in line]
    assert [line.split()[3] for line in lines] == ["flash,", "rows,"]
    assert all(" 0 host reads" in line for line in lines)


def test_the_processor_is_described_with_its_instruction_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Some CPU\nmodel name\t: Some CPU\n")
    monkeypatch.setattr(devices, "CPUINFO", cpuinfo)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert devices.describe_device(CPU) == "4 x Some CPU (AVX2)"
