"""`seq2seq doctor`: check packages, devices and a small training on this machine.

Checks import packages locally, to be able to report missing or broken packages.
"""

from __future__ import annotations

import contextlib
import io
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import requires, version
from pathlib import Path
from typing import Literal, NamedTuple

from seq2seq.errors import UserError, require_extra

SELF_TEST = """
data: {{source: en, target: de, train: {folder}/train.tsv, dev_size: 10, store: {folder}/store}}
tokenizer: {{vocab_size: 300}}
model: {{dim: 32, ffn_dim: 64, num_heads: 2, encoder_layers: 1, decoder_layers: 1, dropout: 0}}
training: {{max_steps: 20, batch_tokens: 400, warmup_steps: 5, validate_every: 1000,
  checkpoint_every: 10, precision: fp32}}
decoding: {{max_extra: 5}}
"""


class Finding(NamedTuple):
    """Result of a check."""

    level: Literal["ok", "warning", "failed"]
    text: str
    """What was found and, of a warning or failure, how to fix it."""


def examine() -> Iterator[Finding]:
    """Run all checks and yield their findings; an exception is one, too."""
    checks = (
        (_packages, "seq2seq is not installed", "run `pip install -e .` in its folder"),
        (_devices, "torch cannot be used", "pip install -U torch"),
        (_self_test, "self-test", "report this unless a line above explains it"),
    )
    for check, name, advice in checks:
        try:
            yield from check()
        except (Exception, SystemExit) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            yield Finding("failed", f"{name}: {reason[:300]}: {advice}")


def _packages() -> Iterator[Finding]:
    """Compare the installed packages with the requirements of seq2seq."""
    from packaging.requirements import Requirement

    yield Finding("ok", f"Python {platform.python_version()} on {platform.platform()}")
    usable: list[str] = []
    for requirement in map(Requirement, requires("seq2seq") or ()):
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            require_extra(requirement.name, "seq2seq")
            usable.append(f"{requirement.name} {version(requirement.name)}")
        except UserError as error:
            yield Finding("failed", str(error))
    yield Finding("ok", ", ".join(usable))


def _devices() -> Iterator[Finding]:
    """Measure the speed of matrix multiplication on every device, in every precision."""
    import torch

    from seq2seq.machine.devices import describe_device
    from seq2seq.machine.precision import DTYPES, resolve_precision, single_thread_flops
    from seq2seq.machine.threads import usable_cores

    devices = [torch.device("cpu")]
    devices += [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append(torch.device("mps"))
    for device in devices:
        flops = {precision: single_thread_flops(device, precision) for precision in DTYPES}
        speeds = [f"{precision} {speed / 1e9:,.0f}" for precision, speed in flops.items() if speed]
        chosen = resolve_precision("auto", device)
        translation = "fp32" if device.type == "cpu" else chosen
        text = f"{describe_device(device)}: {', '.join(speeds)} GFLOP/s; training in {chosen}, "
        yield Finding("ok", f"{text}translation in {translation}")
    yield Finding("ok", f"{usable_cores()} cores, {torch.get_num_threads()} threads")
    if not torch.cuda.is_available() and shutil.which("nvidia-smi"):
        text = f"torch {torch.__version__} does not see the NVIDIA GPU"
        yield Finding("warning", f"{text}: install a CUDA build of torch, or a newer driver")


def _self_test() -> Iterator[Finding]:
    """Train a small model, resume its run and translate."""
    from seq2seq.decoding.translator import Translator
    from seq2seq.evaluation.evaluators import validator
    from seq2seq.formats.model_directory import load_config
    from seq2seq.training.run import train

    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()):
        folder = Path(name)
        pairs = "".join(f"the house number {i}\tdas Haus Nummer {i}\n" for i in range(200))
        (folder / "train.tsv").write_text(pairs, encoding="utf-8")
        recipe = folder / "toy.yaml"
        recipe.write_text(SELF_TEST.format(folder=folder), encoding="utf-8")
        train(load_config(recipe), folder / "run", validator)
        resumed = load_config(recipe, ["training.max_steps=40"])
        if train(resumed, folder / "run", validator).step != 40:
            raise RuntimeError("the run did not resume")
        Translator.load(folder / "run").translate(["the house number 7"])
    seconds = time.monotonic() - start
    yield Finding("ok", f"self-test: trained, resumed and translated in {seconds:.0f} s")
