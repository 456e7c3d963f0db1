"""Steps that run tests and commands of the toolkit."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from seq2seq.machine.devices import describe_device
from seq2seq.machine.precision import DTYPES, matmul_flops, resolve_precision

ROOT = Path(__file__).resolve().parents[2]
SEQ2SEQ = [sys.executable, "-m", "seq2seq"]
OPTIONAL = ("ctranslate2", "datasets", "pyarrow", "pytest", "sacrebleu", "transformers")
TRAINED_MINUTES = 3
BESIDE_TRAINING = 45
"""Seconds reserved for preparation and evaluation."""

Result = dict[str, Any]


def device() -> torch.device:
    """Return the GPU, or the CPU without a GPU."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def environment(arguments: argparse.Namespace) -> Iterator[Result]:
    """Report device, versions and missing packages; fail without a GPU."""
    gpu = device()
    if gpu.type == "cpu" and not arguments.rehearse:
        sys.exit("torch finds no GPU")
    precision = resolve_precision("auto", gpu)
    size = 1024 if gpu.type == "cpu" else 8192
    yield {
        "device": describe_device(gpu),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "missing": [name for name in OPTIONAL if not importlib.util.find_spec(name)],
        "precision": precision,
        "peak_tflops": round(matmul_flops(gpu, DTYPES[precision], size) / 1e12, 1),
    }


def tests(arguments: argparse.Namespace) -> Iterator[Result]:
    """Run the tests with the marker `gpu`."""
    chosen = ["-m", "gpu", "-p", "no:cacheprovider", str(ROOT / "tests" / "test_gpu.py")]
    command = [sys.executable, "-m", "pytest", *chosen]
    environment = os.environ | {"GPU_TESTS_DEVICE": "cpu" if arguments.rehearse else device().type}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    print(done.stdout, file=sys.stderr)
    counts = re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout)
    yield {name: int(count) for count, name in counts}
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-500:])


def quick_start(arguments: argparse.Namespace) -> Iterator[Result]:
    """Train the recipe of the quick start for three minutes, and score its test set."""
    if not arguments.data:
        yield {"left_out": "needs --data FOLDER"}
        return
    sets = [f"data.{name}={arguments.data.resolve()}/{name}" for name in ("train", "dev", "test")]
    sizes = [
        _minutes(arguments),
        "training.max_steps=100000",
        "training.checkpoint_every_minutes=null",
    ]
    if arguments.rehearse:
        sizes = [
            "tokenizer.vocab_size=400",
            "model.dim=16",
            "model.ffn_dim=32",
            "training.max_steps=4",
            "training.max_minutes=null",
        ]
    yield from _trained("recipes/libreoffice/recipe.yaml", [*sets, *sizes])


def language_model(arguments: argparse.Namespace) -> Iterator[Result]:
    """Train the character-level language model for three minutes, and evaluate it."""
    if not arguments.text:
        yield {"left_out": "needs --text FILE"}
        return
    sizes = [_minutes(arguments)]
    if arguments.rehearse:
        sizes = [
            "model.dim=24",
            "model.ffn_dim=32",
            "model.decoder_layers=1",
            "model.context=32",
            "training.max_steps=4",
        ]
    yield from _trained(
        "recipes/char_lm/tiny_shakespeare.yaml",
        [f"data.text={arguments.text.resolve()}", *sizes],
        ["--split", "dev", "--stride", "32"],
    )


def _minutes(arguments: argparse.Namespace) -> str:
    """Return the override that limits the training time."""
    minutes = min(TRAINED_MINUTES, (arguments.seconds - BESIDE_TRAINING) / 60)
    return f"training.max_minutes={max(0.2, minutes):.2f}"


def _trained(recipe: str, overrides: list[str], options: Sequence[str] = ()) -> Iterator[Result]:
    """Train a recipe in a temporary folder, and evaluate the run."""
    with tempfile.TemporaryDirectory() as folder:
        run, start = Path(folder) / "run", time.monotonic()
        overrides = [f"data.store={folder}/store", *overrides]
        train = [*SEQ2SEQ, "train", recipe, *overrides, "--run", str(run)]
        _require_success(subprocess.run(train, cwd=ROOT, stdout=sys.stderr))
        seconds = time.monotonic() - start
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        log = [record for record in map(json.loads, lines) if record["kind"] == "train"]
        keys = ("tokens_per_second", "memory_gib", "minutes", "nll")
        last = {key: log[-1][key] for key in keys if key in log[-1]}
        yield {"seconds": round(seconds), "updates": log[-1]["step"], **last}
        evaluate = [*SEQ2SEQ, "evaluate", str(run), *options, "--json"]
        done = subprocess.run(evaluate, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        _require_success(done)
    yield {"evaluated": json.loads(done.stdout)}


def _require_success(done: subprocess.CompletedProcess[Any]) -> None:
    """Exit if a command failed."""
    if done.returncode:
        sys.exit(f"'{' '.join(map(str, done.args[2:5]))} ...' failed")
