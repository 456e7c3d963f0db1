"""What needs a GPU: its kernels, its search and its checkpoints against those of the CPU.

GPU_TESTS_DEVICE=cpu rehearses these tests without one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import VOCABULARY, records
from numpy.typing import NDArray

from seq2seq.config import Config, DecodingConfig
from seq2seq.data.batching import Batch, collate
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.engine import Hypothesis, Source
from seq2seq.decoding.engines import Engines
from seq2seq.machine.precision import DTYPES, Precision
from seq2seq.model import packed_attention
from seq2seq.model.transformer import Transformer
from seq2seq.training.loss import ModelLoss

DEVICE = torch.device(os.environ.get("GPU_TESTS_DEVICE", "cuda"))

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        DEVICE.type == "cuda" and not torch.cuda.is_available(), reason="needs a GPU"
    ),
]

MakeModel = Callable[..., Transformer]
TOKENIZER = Tokenizer(VOCABULARY, VOCABULARY)


@pytest.fixture
def batch() -> Batch:
    """Return sentences of 1 to 70 tokens."""
    random = np.random.default_rng(1)

    def rows() -> list[NDArray[np.int32]]:
        lens = [70, *random.integers(1, 40, 30)]
        return [random.integers(4, 13, size).astype(np.int32) for size in lens]

    return collate(rows(), rows(), TOKENIZER)


def loss_and_gradients(
    model: Transformer, batch: Batch, device: torch.device, precision: Precision
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss, and all gradients as one vector, on the CPU."""
    model = model.to(device).train()
    enabled = precision != "fp32"
    with torch.autocast(device.type, DTYPES[precision], enabled=enabled):
        loss, _ = ModelLoss(model, 0.1)(batch.to(device))
    gradients = torch.autograd.grad(loss, [*model.parameters()])
    return loss.detach().cpu(), torch.cat([each.flatten().cpu() for each in gradients])


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("precision", DTYPES)
def test_loss_and_gradients_equal_those_of_the_cpu(
    make_model: MakeModel, batch: Batch, precision: Precision, recompute: bool, positions: str
) -> None:
    """The CPU computes in fp32."""
    model = make_model(dim=32, positions=positions)
    model.set_gradient_checkpointing(recompute)
    exact, wanted = loss_and_gradients(model, batch, torch.device("cpu"), "fp32")
    found, gradient = loss_and_gradients(model, batch, DEVICE, precision)
    rel = {"fp32": 1e-4, "bf16": 0.05, "fp16": 0.01}[precision]
    assert found.item() == pytest.approx(exact.item(), rel=rel)
    assert (gradient - wanted).norm() <= rel * wanted.norm()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_flash_attention_and_rows_are_equal(
    make_model: MakeModel, batch: Batch, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flash attention of packed sentences, where the device has it, and attention in rows."""
    model = make_model(dim=32)
    loss, gradient = loss_and_gradients(model, batch, DEVICE, precision)
    monkeypatch.setattr(packed_attention, "find_kernel", lambda *_: None)
    wanted, other = loss_and_gradients(model, batch, DEVICE, precision)
    assert loss.item() == pytest.approx(wanted.item(), rel=0.01)
    assert (gradient - other).norm() <= 0.05 * other.norm()


def test_the_device_has_flash_attention() -> None:
    if DEVICE.type == "cuda" and torch.cuda.get_device_capability() >= (8, 0):
        assert packed_attention.find_kernel(DEVICE, torch.bfloat16, 64) is not None


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("rules", [{}, {"no_repeat_ngram": 2}])
def test_the_search_finds_what_the_search_on_a_cpu_finds(
    make_model: MakeModel, beam: int, rules: dict[str, Any]
) -> None:
    options = DecodingConfig(**{"precision": "fp32", "beam": beam, "max_extra": 8, **rules})
    random = np.random.default_rng(1)
    sources = [
        Source(VOCABULARY.pieces(random.integers(4, 13, size).tolist()))
        for size in random.integers(1, 30, 40)
    ]
    found: list[list[list[Hypothesis]]] = []
    for device in (DEVICE, torch.device("cpu")):
        model = make_model(dim=32, vocab_size=VOCABULARY.size).to(device)
        engine = Engines.of_model(model, TOKENIZER, Config(decoding=options)).torch
        found.append(engine.search(sources, options))
    for [own], [other] in zip(*found, strict=True):
        assert own.pieces == other.pieces
        assert own.log_prob == pytest.approx(other.log_prob, abs=1e-3)


def test_a_checkpoint_goes_from_the_device_to_a_cpu_and_back(recipe: Path, tmp_path: Path) -> None:
    """The same course as on a CPU alone, in fp32."""
    on_cpu = {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
    on_device = on_cpu if DEVICE.type == "cpu" else {}
    courses = {"mixed": [on_device, on_cpu, on_device], "cpu": [on_cpu]}
    for name, places in courses.items():
        for i, place in enumerate(places, start=1):
            steps = 4 * i if name == "mixed" else 12
            # Devices draw different dropout masks.
            fixed = ["training.precision=fp32", "model.dropout=0"]
            overrides = [f"training.max_steps={steps}", *fixed]
            command = [sys.executable, "-m", "seq2seq", "train", str(recipe), *overrides]
            subprocess.run(
                [*command, "--run", str(tmp_path / name)], env=os.environ | place, check=True
            )
    starts = (tmp_path / "mixed" / "starts.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in starts] == [0, 4, 8]
    mixed, alone = (records(tmp_path / name, "validation")[-1]["nll"] for name in courses)
    assert mixed == pytest.approx(alone, rel=1e-3)
