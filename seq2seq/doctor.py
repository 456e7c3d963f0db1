"""`seq2seq doctor`: what works on this machine, and what to do about what does not.

Each check imports what it needs itself, so that it can say that torch, or another package, is
missing or broken.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

from seq2seq.extras import OLDEST

Level = Literal["ok", "warning", "failed"]

MIN_DISK, MIN_MEMORY = 5, 2
"""GiB below which there is a warning."""
SOURCES = {"Hugging Face hub": "huggingface.co", "PyPI": "pypi.org"}
TIMEOUT = 3.0
"""Seconds to wait for a source of data."""
SELF_TEST = """
data: {{source: en, target: de, train: {folder}/train, dev_size: 10, store: {folder}/store}}
tokenizer: {{vocab_size: 300}}
model: {{dim: 32, ffn_dim: 64, num_heads: 2, encoder_layers: 1, decoder_layers: 1, dropout: 0}}
training: {{max_steps: {steps}, batch_tokens: 400, warmup_steps: 5, validate_every: 1000,
  checkpoint_every: 10, precision: fp32}}
decoding: {{max_extra: 5}}
"""


@dataclass(frozen=True)
class Finding:
    """The verdict of one check."""

    level: Level
    text: str
    advice: str = ""
    """What to do, unless it is ok."""

    def line(self) -> str:
        """Return it as a line."""
        advice = f": {self.advice}" if self.advice else ""
        return f"{self.level:8} {self.text}{advice}"


def examine() -> Iterator[Finding]:
    """Yield the finding of each check, as it is made."""
    yield from _packages()
    torch = _attempt("torch cannot be used", _torch, "pip install -U torch")
    yield torch
    yield _memory()
    yield from _disk()
    yield _compiler()
    yield from _sources()
    if torch.level == "failed":
        yield Finding("failed", "no self-test, since torch does not work")
        return
    yield from _devices()
    yield _attempt("self-test", _self_test, "report it, unless a line above explains it")


def _attempt(name: str, check: Callable[[], Finding], advice: str) -> Finding:
    """Make a check that may fail in any way, which is what it is there to find."""
    try:
        return check()
    except (Exception, SystemExit) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        return Finding("failed", f"{name}: {reason[:300]}", advice)


def _packages() -> Iterator[Finding]:
    """Compare the installed packages with those that this one requires."""
    from packaging.requirements import Requirement

    enough = sys.version_info >= (3, 10)
    text = f"Python {platform.python_version()} on {platform.platform()}"
    yield Finding("ok", text) if enough else Finding("failed", text, "install 3.10 or newer")
    try:
        listed = [Requirement(text) for text in requires("seq2seq") or ()]
    except PackageNotFoundError:
        yield Finding("failed", "seq2seq is not installed", "pip install -e . in its folder")
        return
    found: list[str] = []
    optional: list[str] = []
    for each in listed:
        is_extra = each.marker is not None and "extra" in str(each.marker)
        if is_extra and each.name not in OLDEST:
            continue
        try:
            installed = version(each.name)
        except PackageNotFoundError:
            if not is_extra:
                yield Finding("failed", f"{each.name} is missing", f'pip install "{each}"')
            continue
        name = f"{each.name} {installed}"
        if installed in each.specifier or is_extra:
            (optional if is_extra else found).append(name)
        else:
            yield Finding("failed", name, f'pip install "{each}"')
    yield Finding("ok", ", ".join(found))
    yield Finding("ok", f"extras: {', '.join(sorted(set(optional))) or 'none'}")


def _torch() -> Finding:
    torch = importlib.import_module("torch")
    if float((torch.ones(2, 2) @ torch.ones(2, 2)).sum()) != 8.0:
        return Finding("failed", f"torch {torch.__version__}: a product is wrong", "reinstall it")
    return Finding("ok", f"torch {torch.__version__} works")


def _memory() -> Finding:
    import psutil

    memory = psutil.virtual_memory()
    free, total = memory.available / 2**30, memory.total / 2**30
    text = f"memory: {free:.1f} of {total:.1f} GiB free"
    if free < MIN_MEMORY:
        return Finding("warning", text, "end other programs, or lower training.micro_batch_tokens")
    return Finding("ok", text)


def _disk() -> Iterator[Finding]:
    for folder in dict.fromkeys((Path.cwd(), Path(tempfile.gettempdir()))):
        free = shutil.disk_usage(folder).free / 2**30
        text = f"disk: {free:.1f} GiB free in {folder}"
        if not os.access(folder, os.W_OK):
            yield Finding("failed", f"{folder} cannot be written", "run this in another folder")
        elif free < MIN_DISK:
            yield Finding("warning", text, "a quick start needs 2 GiB, a WMT corpus 20")
        else:
            yield Finding("ok", text)


def _compiler() -> Finding:
    found = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    if found:
        return Finding("ok", f"compiler: {found}, for training.compile")
    return Finding("warning", "no compiler", "training.compile needs one, such as gcc")


def _sources() -> Iterator[Finding]:
    """Ask which sources of data answer."""
    for name, host in SOURCES.items():
        try:
            with contextlib.closing(socket.create_connection((host, 443), TIMEOUT)):
                yield Finding("ok", f"{name} answers")
        except OSError as error:
            yield Finding("warning", f"{name} does not answer ({error.strerror or error})",
                          "data sets are read from local files, too")  # fmt: skip
    if not shutil.which("apt-get"):
        yield Finding("warning", "no apt-get", "the quick start takes data from the hub instead")


def _devices() -> Iterator[Finding]:
    """Measure the precisions of each device."""
    import torch

    from seq2seq.machine.devices import describe_device
    from seq2seq.machine.precision import DTYPES, resolve_precision, single_thread_flops
    from seq2seq.machine.threads import fixed_threads, usable_cores
    from seq2seq.model.inference import choose_precision

    devices = [torch.device("cpu")]
    devices += [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append(torch.device("mps"))
    for device in devices:
        flops = {precision: single_thread_flops(device, precision) for precision in DTYPES}
        speeds = [f"{precision} {each / 1e9:,.0f}" for precision, each in flops.items() if each]
        chosen = resolve_precision("auto", device), choose_precision("auto", device)
        text = f"{describe_device(device)}: {', '.join(speeds)} GFLOP/s; training in {chosen[0]}, "
        yield Finding("ok", f"{text}translation in {chosen[1]}")
    origin = "fixed by the environment" if fixed_threads() else "adapted to the load"
    yield Finding("ok", f"{usable_cores()} cores, {torch.get_num_threads()} threads, {origin}")
    if not torch.cuda.is_available() and shutil.which("nvidia-smi"):
        yield Finding("warning", f"torch {torch.__version__} does not see the NVIDIA card",
                      "install a CUDA build of torch, or a newer driver")  # fmt: skip


def _self_test() -> Finding:
    """Train a toy, resume it and translate."""
    from seq2seq.decoding.translator import Translator
    from seq2seq.model.recipe import load_config
    from seq2seq.training.checkpoint import RunState
    from seq2seq.training.run import train

    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()):
        folder = Path(name)
        for language, text in (("en", "the house number {}\n"), ("de", "das Haus Nummer {}\n")):
            lines = "".join(text.format(i) for i in range(200))
            (folder / f"train.{language}").write_text(lines, encoding="utf-8")
        for steps in (20, 40):
            recipe = folder / "toy.yaml"
            recipe.write_text(SELF_TEST.format(folder=folder, steps=steps), encoding="utf-8")
            train(load_config(recipe), folder / "run")
        if RunState.load(folder / "run" / "last").step != 40:
            return Finding("failed", "self-test: the run did not resume", "report it")
        Translator.load(folder / "run").translate(["the house number 7"])
    seconds = time.monotonic() - start
    return Finding("ok", f"self-test: trained, resumed and used a toy in {seconds:.0f} s")
