"""Choice of the engine, models for inference, and the conversion of models to CTranslate2."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from trained import LINES, exported, own_translator, quantization_error, trained_model

from seq2seq.decoding.engines import Engines
from seq2seq.decoding.translator import Translator
from seq2seq.errors import UserError
from seq2seq.files import SUMS_FILE, atomic_folder, find_damage
from seq2seq.formats import ctranslate2 as ctranslate2_form
from seq2seq.formats.ctranslate2 import CHECKSUM_FILE, CONVERTED_FOLDER, converted
from seq2seq.formats.model_directory import OPTIONAL_FILES, WEIGHTS_FILE
from seq2seq.formats.weights import load_model, save_model, snapshot
from seq2seq.machine.devices import may_have_gpu
from seq2seq.machine.precision import Precision
from seq2seq.model.transformer import CastLinear, Transformer, for_inference


def write_model_directory(folder: Path, model: Transformer | None = None) -> Path:
    loaded = trained_model()
    with atomic_folder(folder) as draft:
        save_model(draft, snapshot(model or loaded.model), loaded.tokenizer, loaded.config)
    return folder


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [x.getMessage() for x in caplog.records if x.levelno == logging.WARNING]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model_directory(tmp_path / "model")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("variant", [{}, {"norm": "pre", "positions": "rotary", "tied": False}])
def test_a_model_for_inference_shares_weights_and_leaves_the_model_unchanged(
    precision: Precision, variant: dict[str, Any]
) -> None:
    loaded = trained_model(**variant)
    model = loaded.model
    assert isinstance(model, Transformer)
    before = {name: p.clone() for name, p in model.named_parameters()}
    converted_model = for_inference(model, precision)
    assert converted_model.target_embedding.weight is model.target_embedding.weight
    modules = [*converted_model.modules()]
    assert {*map(type, modules)} - {*map(type, model.modules())} == {CastLinear}
    if precision != "fp32":
        assert not any(isinstance(module, torch.nn.Linear) for module in modules)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert all(x.fused_qkv is None for x in model.modules() if hasattr(x, "fused_qkv"))
    translator = own_translator(loaded)
    expected = translator.translate(LINES)
    translator.engines.torch.models = [converted_model]
    texts = translator.translate(LINES)
    num_equal = sum(a == b for a, b in zip(texts, expected, strict=True))
    minimum = {"fp32": 1.0, "bf16": 0.8}[precision]  # many hypotheses have close scores
    assert num_equal >= minimum * len(LINES), num_equal


@pytest.mark.parametrize("precision", ["auto", "fp32", "bf16", "fp16", "int8"])
def test_on_a_cpu_torch_searches_in_fp32(folder: Path, precision: str) -> None:
    """Translations in fp32 do not depend on the machine."""
    engine = Translator.load(folder, device="cpu", precision=precision).engines.torch
    assert engine.models[0].output.weight.dtype == torch.float32


def test_a_gpu_precision_becomes_fp32_on_a_cpu_with_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = Translator.load(folder, device="cpu").translate(LINES)
    assert Translator.load(folder, device="cpu", precision="auto").translate(LINES) == expected
    assert not warnings_of(caplog)
    assert Translator.load(folder, device="cpu", precision="bf16").translate(LINES) == expected
    assert warnings_of(caplog) == ["precision=bf16 needs a GPU: decoding in fp32"]


def test_the_precision_cannot_change_after_loading(folder: Path) -> None:
    translator = Translator.load(folder, device="cpu", precision="int8")
    with pytest.raises(TypeError, match=r"Translator\.load"):
        translator.translate(["a"], precision="fp32")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"sample": True, "top_k": 3}, "does not support sampling"),
        ({"constraints": [["Haus"]]}, "does not support terms and glossaries"),
    ],
    ids=str,
)
def test_torch_searches_with_options_that_ctranslate2_does_not_support(
    options: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    loaded = trained_model()
    engines = Engines.of_model(loaded.model, loaded.tokenizer, loaded.config)  # type: ignore[arg-type]
    translator = Translator(engines, loaded.config.decoding)
    with caplog.at_level(logging.INFO, "seq2seq"):
        for _ in range(2):
            assert translator.translations(["a house"], **options)[0].text
    assert caplog.messages == [f"decoding with PyTorch (CTranslate2 {reason})"]
    assert "ctranslate2" not in vars(engines)
    translator = Translator.load(exported(loaded, tmp_path, "ctranslate2"), device="cpu")
    with pytest.raises(UserError, match=f"{reason}: translate with the"):
        translator.translations(["a house"], **options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam": 1},
        {"length_penalty": 0.6, "penalty_form": "wu"},
        {"min_length": 3, "no_repeat_ngram": 2, "patience": 2.0},
        {"prefixes": ["das"]},
    ],
    ids=str,
)
def test_ctranslate2_searches_otherwise_and_no_torch_model_is_loaded(
    folder: Path, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    translator = Translator.load(folder, device="cpu")
    with caplog.at_level(logging.INFO, "seq2seq.decoding"):
        assert translator.translate(["a house"], **options)[0]
    assert caplog.messages == ["decoding with CTranslate2 (fp32)"]
    assert "torch" not in vars(translator.engines)


def test_torch_searches_on_gpus_and_with_ensembles(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "seq2seq.decoding")
    assert Translator.load(folder, others=[folder], device="cpu").translate(["a house"])
    engines = Translator.load(folder, device="cpu").engines
    engines.device = "cuda"
    with patch.object(Engines, "torch", "torch"):
        assert engines.engine_for(Translator.load(folder, device="cpu").decoding) == "torch"
    assert caplog.messages == [
        "decoding with PyTorch (CTranslate2 does not support ensembles)",
        "decoding with PyTorch (cuda)",
    ]


def test_int8_is_close_to_fp32_and_does_not_depend_on_the_batch(folder: Path) -> None:
    fp32, int8 = (Translator.load(folder, device="cpu", precision=key) for key in ("fp32", "int8"))
    assert 0 < quantization_error(int8, fp32) < 0.05
    texts = int8.translate(LINES)
    assert [int8.translate([line])[0] for line in LINES] == texts
    assert int8.translate(LINES[::-1]) == texts[::-1]


def test_a_model_is_converted_to_ctranslate2_once(folder: Path) -> None:
    Translator.load(folder, device="cpu")
    assert not (folder / CONVERTED_FOLDER).exists()  # converted by the first search
    expected = Translator.load(folder, device="cpu").translate(LINES)
    assert (folder / CONVERTED_FOLDER / "model.bin").exists()
    assert not find_damage(folder, OPTIONAL_FILES) and load_model(folder)
    assert {path.name for path in folder.parent.iterdir()} == {"model"}
    in_int8 = Translator.load(folder, device="cpu", precision="int8").translate(LINES)
    with patch.object(ctranslate2_form, "write_model", side_effect=AssertionError):
        for precision, texts in (("fp32", expected), ("int8", in_int8)):
            again = Translator.load(folder, device="cpu", precision=precision)
            assert again.translate(LINES) == texts


@pytest.mark.parametrize("change", ["deleted", "damaged", "cut off", "other weights"])
def test_a_model_is_converted_again_after_damage_or_new_weights(folder: Path, change: str) -> None:
    with converted(folder) as kept:
        original = (kept / "model.bin").read_bytes()
    if change == "deleted":
        shutil.rmtree(kept)
    elif change == "damaged":
        (kept / "model.bin").write_bytes(original[:-500] + bytes(500))
    elif change == "cut off":
        (kept / SUMS_FILE).unlink()
        (kept / "model.bin").write_bytes(original[:1000])
    else:
        model = trained_model().model
        with torch.no_grad():
            model.get_parameter("output.weight").mul_(0.5)
        write_model_directory(folder.parent / "other", model)  # type: ignore[arg-type]
        for name in (WEIGHTS_FILE, SUMS_FILE):
            shutil.copy(folder.parent / "other" / name, folder)
    with converted(folder) as again:
        assert again == kept and not find_damage(kept)
        new = (kept / "model.bin").read_bytes()
        assert (new == original) == (change != "other weights")
    written = (kept / CHECKSUM_FILE).stat().st_mtime_ns
    with converted(folder):
        assert (kept / CHECKSUM_FILE).stat().st_mtime_ns == written


def test_without_a_checksum_file_the_checksum_is_computed_from_the_weights(folder: Path) -> None:
    """Hugging Face's model folders have no checksum file."""
    with converted(folder) as kept:
        checksum = (kept / CHECKSUM_FILE).read_text()
    (folder / SUMS_FILE).unlink()
    no_conversion = patch.object(ctranslate2_form, "write_model", side_effect=AssertionError)
    with no_conversion, converted(folder) as again:
        assert again == kept
    assert (kept / CHECKSUM_FILE).read_text() == checksum


def test_a_read_only_folder_gives_a_warning_and_a_temporary_conversion(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Translator.load(folder, device="cpu").translate(LINES)
    shutil.rmtree(folder / CONVERTED_FOLDER)

    def fail(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    # Removing permissions is no test: root may write everywhere.
    monkeypatch.setattr("seq2seq.formats.ctranslate2.exclusive", fail)
    before = sorted(folder.iterdir())
    assert Translator.load(folder, device="cpu").translate(LINES) == expected
    [message] = warnings_of(caplog)
    assert f"{CONVERTED_FOLDER} cannot be written: converting at each start" in message
    assert "Permission denied" in message and sorted(folder.iterdir()) == before
    with converted(folder) as temporary:
        assert temporary.exists() and folder not in temporary.parents
    assert not temporary.exists()


def test_translation_on_a_cpu_needs_neither_torch_nor_accelerate(
    folder: Path, tmp_path: Path
) -> None:
    with converted(folder):  # written by torch
        pass
    for name in ("torch", "accelerate", "datasets"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('no {name} here')")
    options = ["--beam", "3", "--nbest", "2", "--json", "--tokens", "--alignment"]
    done = subprocess.run(
        [sys.executable, "-m", "seq2seq", "translate", folder, *options],
        input="a house\n\nthe red dog\n",
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""},
    )
    assert not done.returncode, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 3 and lines[0]["tokens"][-1]["piece"] == "</s>" and lines[2]["alignment"]


@pytest.mark.parametrize(
    ("build", "expected"),
    [("2.13.0+cpu", False), ("2.13.0+cu126", True), ("2.13.0", True), ("2.13.0+rocm6.4", True)],
)
@pytest.mark.parametrize("has_card", [True, False])
def test_whether_there_may_be_a_gpu(
    build: str, expected: bool, has_card: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("seq2seq.machine.devices.version", lambda _: build)
    monkeypatch.setattr(Path, "glob", lambda _, pattern: ["card"] * has_card)
    assert may_have_gpu() == (expected and (has_card or "rocm" in build))
