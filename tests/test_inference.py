"""Translation in other precisions, by several processes, and with one wait for the device."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil
import pytest
import torch
from conftest import engine_of
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from trained import LINES, own_translator, trained_model

from seq2seq.decoding import engine as engine_module
from seq2seq.decoding import search
from seq2seq.decoding.beams import Beams, LengthPenalty
from seq2seq.decoding.engine import SearchEngine
from seq2seq.decoding.segments import Request, Segment
from seq2seq.decoding.translator import Translator
from seq2seq.errors import OptionError, UserError
from seq2seq.files import atomic_folder
from seq2seq.machine.workers import Waiting, WorkerError, in_workers
from seq2seq.model import inference
from seq2seq.model.directory import save_model, snapshot
from seq2seq.model.inference import (
    CastLinear,
    InferencePrecision,
    Int8Linear,
    choose_precision,
    converted,
    for_inference,
    has_int8,
)
from seq2seq.model.transformer import Transformer

CPU = torch.device("cpu")
needs_int8 = pytest.mark.skipif(not has_int8(), reason="this torch has no int8 products")
needs_fork = pytest.mark.skipif(sys.platform != "linux", reason="no safe fork")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model directory of a small trained model."""
    loaded = trained_model()
    with atomic_folder(tmp_path_factory.mktemp("models") / "model") as draft:
        save_model(draft, snapshot(loaded.model), loaded.tokenizer, loaded.config)
    return draft.parent / "model"


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("precision", "error"),
    [("fp32", 1e-6), ("bf16", 0.02), pytest.param("int8", 0.03, marks=needs_int8)],
)
def test_a_converted_product_is_near_the_exact_one(
    precision: InferencePrecision, error: float, bias: bool
) -> None:
    generator = torch.Generator().manual_seed(1)
    layer = nn.Linear(96, 160, bias=bias)
    x = torch.randn(5, 3, 96, generator=generator)
    with torch.no_grad():
        layer.weight.normal_(generator=generator)
        layer.weight[7] *= 40.0  # each output has a scale of its own
        found = converted(layer.weight, layer.bias, precision)(x).float()
        exact = layer(x)
    scale = exact.square().mean(dim=(0, 1)).sqrt()
    assert found.shape == exact.shape
    assert float(((found - exact).abs().amax(dim=(0, 1)) / scale).max()) < 4 * error


@pytest.mark.parametrize("precision", ["fp32", "bf16", pytest.param("int8", marks=needs_int8)])
@pytest.mark.parametrize("variant", [{}, {"norm": "pre", "positions": "rotary", "tied": False}])
def test_a_model_for_inference_shares_what_is_not_converted_and_changes_nothing(
    precision: InferencePrecision, variant: dict[str, Any]
) -> None:
    loaded = trained_model(**variant)
    model = loaded.model
    assert isinstance(model, Transformer)
    before = {name: p.clone() for name, p in model.named_parameters()}
    other = for_inference(model, precision)
    assert other.target_embedding.weight is model.target_embedding.weight
    kinds = {type(each) for each in other.modules()} - {type(each) for each in model.modules()}
    assert kinds == {Int8Linear if precision == "int8" else CastLinear}
    if precision != "fp32":
        assert not any(isinstance(each, nn.Linear) for each in other.modules())
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert all(each.joined is None for each in model.modules() if hasattr(each, "joined"))
    texts = [
        Translator(SearchEngine([each], loaded.tokenizer, [loaded.config]), loaded.config.decoding)
        .translate(LINES)
        for each in (model, other)
    ]  # fmt: skip
    same = sum(a == b for a, b in zip(*texts, strict=True))
    least = {"fp32": 1.0, "bf16": 0.8, "int8": 0.6}[precision]  # the competitors are close
    assert same >= least * len(LINES), same


def test_auto_is_the_fastest_precision_and_fp32_in_evaluations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speeds = {"fp32": 1.0, "bf16": 1.5, "int8": 2.0}
    monkeypatch.setattr(inference, "_seconds", lambda precision: 1 / speeds[precision])
    monkeypatch.setattr(inference, "resolve_precision", lambda *_: "bf16")
    monkeypatch.setattr(inference, "has_int8", lambda: True)

    def chosen(**faster: float) -> str:
        inference._fastest.cache_clear()
        speeds.update(faster)
        return choose_precision("auto", CPU)

    assert (
        chosen() == "int8" and chosen(int8=1.6) == "bf16" and chosen(bf16=1.1, int8=1.1) == "fp32"
    )
    assert chosen(int8=9.0) == "int8" and choose_precision("auto", CPU, evaluation=True) == "fp32"
    assert choose_precision("bf16", CPU, evaluation=True) == "bf16"
    inference._fastest.cache_clear()


def test_a_precision_that_the_device_lacks_is_refused_or_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UserError, match="precision=int8 is for CPUs"):
        choose_precision("int8", torch.device("cuda"))
    with pytest.raises(UserError, match="precision=fp16 is for GPUs"):
        choose_precision("fp16", CPU)
    assert choose_precision("fp16", CPU, evaluation=True) == "fp32"
    monkeypatch.setattr(inference, "has_int8", lambda: False)
    assert choose_precision("int8", CPU) == "fp32" and "fp32 is used" in caplog.text


def test_the_precision_is_chosen_when_a_model_is_loaded(folder: Path) -> None:
    translator = Translator.load(folder, precision="bf16", lookahead=3)
    assert isinstance(engine_of(translator).ensemble.models[0].output, CastLinear)
    with pytest.raises(TypeError, match=r"Translator\.load"):
        translator.translate(["a"], precision="fp32")


@needs_fork
@pytest.mark.parametrize("options", [{}, {"beam": 1}, {"min_length": 3}, {"diverse_groups": 2}])
def test_several_processes_translate_as_one(folder: Path, options: dict[str, Any]) -> None:
    translator = Translator.load(folder, **options)
    engine = engine_of(translator)
    alone = translator.translate(LINES)
    counts: list[tuple[int, int]] = []
    engine.workers = 3
    with patch.object(engine_module, "in_workers", wraps=in_workers) as forked:
        requests = [Request(line, i) for i, line in enumerate(LINES)]
        found = translator.process(requests, advance=lambda *each: counts.append(each))
    assert [each.text for each in found] == alone
    assert forked.call_args.args[1] == 3 and sum(lines for lines, _ in counts) == len(LINES)
    engine.workers = 1


@needs_fork
def test_each_number_is_taken_by_one_process() -> None:
    waiting = Waiting(50, shared=True)

    def work(_: int) -> Iterator[int]:
        while numbers := waiting.take(3):
            yield from numbers
            time.sleep(0.001)

    assert sorted(in_workers(work, 3)) == list(range(50)) and waiting.first == 50


@needs_fork
def test_errors_of_a_process_end_all() -> None:
    """The last of three has it, while the others go on and one holds what all need."""
    waiting = Waiting(9, shared=True)

    def raises(error: Exception) -> Callable[[int], Iterator[int]]:
        def work(number: int) -> Iterator[int]:
            yield 1
            if number < 2:
                time.sleep(600)
            raise error

        return work

    def is_killed(number: int) -> Iterator[int]:
        yield 1
        if number < 2:
            time.sleep(0.2)
            waiting.take(1)  # for ever
        assert waiting._shared is not None
        waiting._shared.get_lock().acquire()
        os.kill(os.getpid(), signal.SIGKILL)

    for error in (UserError("no"), FloatingPointError(), MemoryError()):
        with pytest.raises(type(error)):
            list(in_workers(raises(error), 3))
    with pytest.raises(RuntimeError, match=r"in raises[\s\S]*IndexError|IndexError: there"):
        list(in_workers(raises(IndexError("there")), 3))
    with pytest.raises(WorkerError, match="was killed"):
        list(in_workers(is_killed, 3))


def test_errors_about_options_survive_the_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(OptionError("`batch_tokens`=3; lower `beam`")))
    assert str(error) == "batch_tokens=3; lower beam"
    assert error.in_shell() == "--batch-tokens 3; lower --beam"
    assert not multiprocessing.active_children()


@needs_fork
def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    script = (
        "import os, sys, time; from seq2seq.machine.workers import in_workers\n"
        "def work(number):\n"
        "    yield os.getpid()\n"
        "    time.sleep(600)\n"
        "for pid in in_workers(work, 2): print(pid, flush=True)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    children = [psutil.Process(int(parent.stdout.readline())) for _ in range(2)]
    parent.kill()
    gone, alive = psutil.wait_procs(children, timeout=30)
    assert len(gone) == 2 and not alive and parent.wait() == -signal.SIGKILL


@needs_int8
def test_int8_does_not_hide_what_is_not_a_number(folder: Path) -> None:
    translator = Translator.load(folder, precision="int8", workers=1)
    [model] = engine_of(translator).ensemble.models
    with torch.no_grad():
        model.decoder.each_layer()[0].feed_forward_norm.weight[3] = torch.nan
    with pytest.raises(UserError, match="NaN"):
        translator.translate(LINES[:3])
    with pytest.raises(FloatingPointError):
        for_inference(model, "int8")


@needs_fork
@needs_int8
def test_in_int8_two_runs_agree(folder: Path) -> None:
    found = [
        Translator.load(folder, precision="int8", workers=2, batch_tokens=300).translate(LINES[:80])
        for _ in range(3)
    ]
    assert found[0] == found[1] == found[2]


def test_a_finished_sentence_makes_no_steps_beyond_its_limit() -> None:
    """Its positions may end there."""
    beams = Beams([2, 9], 1, 1, 0, LengthPenalty(0.0))
    beams.start([0, 1])
    for step in range(2):
        assert not beams.is_expired.any()
        tokens = np.array([[0 if step else 5], [5]])
        beams.choose(np.zeros((2, 1)), np.zeros((2, 1)), np.zeros((2, 1), dtype=int), tokens)
    assert beams.is_free.tolist() == beams.is_expired.tolist() == [True, False]


WAITING = {"_local_scalar_dense", "item", "is_nonzero", "nonzero", "equal"}
"""In inference mode `item` and `is_nonzero` are not the first of these."""


class Waits(TorchDispatchMode):
    """Counts the operators that wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += str(func).split(".")[1] in WAITING
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "options", [{"beam": 4}, {"beam": 1}, {"beam": 4, "coverage_penalty": 0.3}]
)
def test_a_step_of_the_search_waits_once_for_the_device(options: dict[str, Any]) -> None:
    """All that the host has to know comes in one copy."""
    loaded = trained_model()
    engine = engine_of(own_translator(loaded))
    decoding = replace(loaded.config.decoding, batch_tokens=200, **options)
    queries = [Segment(ids) for ids in loaded.tokenizer.source.encode(LINES[:40])]
    steps, copies, lists = [], [], []
    step, copy, tolist = engine.ensemble.step, search._to_host, Tensor.tolist

    def noted_step(*args: Any) -> Any:
        steps.append(len(args[0]))
        return step(*args)

    def noted_copy(columns: list[Tensor]) -> Any:
        copies.append(len(columns))
        return copy(columns)

    def noted_list(self: Tensor) -> Any:
        lists.append(inspect.stack()[1].function)
        return tolist(self)

    with (
        patch.object(engine.ensemble, "step", noted_step),
        patch.object(search, "_to_host", noted_copy),
        patch.object(Tensor, "tolist", noted_list),
        Waits() as waits,
    ):
        engine.search(queries, decoding)
    # Lengths are read from main memory before the encoder runs.
    assert len(steps) == len(copies) > 10 and waits.count == 0 and set(lists) == {"start"}
