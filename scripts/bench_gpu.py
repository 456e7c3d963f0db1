"""Measure training and decoding on GPUs.

Usage: python scripts/bench_gpu.py [--part training|decoding|language_model|cards ...]
       [--text FILE] [--minutes N] [-o FILE]

training: the paper's base and big model, target tokens per second, the share of what large products
reach on this device, and peak memory. decoding: the base model with random weights, and text
generation. language_model: the recipe tiny_shakespeare.yaml of recipes/char_lm to its end, on
--text. cards: one GPU to all of them. Each part is a separate process that is ended after so many
minutes, so that one that fails or hangs leaves the others; every result is printed as a line of
JSON, and written to -o as it comes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bench_memory
import numpy as np
import torch

from seq2seq.config import Config, DecodingConfig, TokenizerConfig
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.engine import SearchEngine
from seq2seq.decoding.segments import Segment
from seq2seq.machine.precision import peak_matmul_flops, resolve_precision
from seq2seq.machine.processor import describe_device
from seq2seq.model.transformer import Transformer
from seq2seq.preparation.train_vocabulary import train_vocabulary

SCRIPTS = Path(__file__).resolve().parent
PARTS = ["training", "decoding", "language_model", "cards"]
UPDATES = {"base": 40, "big": 20}
"""Number of measured updates of TOKENS target tokens, after one for warm-up."""
TOKENS = 25_000
SENTENCES, SOURCE_LEN, TARGET_LEN, VOCABULARY = 256, 25, 30, 32_000
"""Decoding settings that are measured."""

Record = dict[str, Any]


def device() -> torch.device:
    """Return the GPU, or the CPU where there is none."""
    if torch.accelerator.is_available():
        return torch.accelerator.current_accelerator() or torch.device("cpu")
    return torch.device("cpu")


def run(script: str, *arguments: str) -> Any:
    """Run another benchmark; return the JSON that it prints, or what went wrong."""
    command = [sys.executable, str(SCRIPTS / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return json.loads(done.stdout)
    print(done.stderr, file=sys.stderr)
    return {"failed": done.stderr.strip().splitlines()[-1:]}


def training() -> Iterator[Record]:
    """Train base and big, without and with gradient checkpointing."""
    peak = peak_matmul_flops(device(), resolve_precision("auto", device()))
    torch.cuda.empty_cache()  # the rows are separate processes
    for shape, updates in UPDATES.items():
        with torch.device("meta"):
            model = Transformer(bench_memory.SHAPES[shape], bench_memory.VOCABULARY)
        flops = model.training_flops(1, 1)
        for checkpointing in ("off", "on"):
            found = run(
                "bench_memory.py", "--shape", shape, "--tokens", str(TOKENS), "--updates",
                str(updates), "--row", "full", checkpointing,
            )  # fmt: skip
            if speed := found.get("tokens_per_second"):
                found |= {"mfu": speed * flops / peak, "peak_flops": peak}
            yield {"shape": shape, "checkpointing": checkpointing, **found}


def cards() -> Iterator[Record]:
    """Train base on one GPU, two, ... all."""
    count = torch.accelerator.device_count()
    one = 0.0
    for number in sorted({1 << shift for shift in range(count.bit_length())} | {count}):
        found = run("bench_distributed.py", "--gpu", "--shape", "base", "--tokens", str(TOKENS),
                    "--rounds", "1", "--json", "--processes", str(number))  # fmt: skip
        if "failed" not in found:
            [found] = found["distributed"]
            one = one or found["tokens_per_second"] / number
            found["efficiency"] = found["tokens_per_second"] / (number * one)
        yield {"cards": number, **found}


def decoding() -> Iterator[Record]:
    """Translate random sentences, all to the same length; generate text."""
    torch.manual_seed(1)
    # Only its special symbols are used, whose ids come first.
    vocabulary = train_vocabulary(["a b c d e f"] * 9, TokenizerConfig(vocab_size=270), [])
    model = Transformer(bench_memory.SHAPES["base"], VOCABULARY).to(device()).eval()
    random = np.random.default_rng(1)
    sources = random.integers(4, VOCABULARY, (SENTENCES, SOURCE_LEN)).tolist()
    queries = [Segment(source) for source in sources]
    for beam in (1, 4):
        options = DecodingConfig(
            beam=beam, max_extra=TARGET_LEN - SOURCE_LEN - 1, batch_tokens=SENTENCES * 26 * beam
        )
        engine = SearchEngine([model], Tokenizer(vocabulary, vocabulary), [Config()])
        seconds = []
        for _ in range(3):  # the first warms up
            start = time.perf_counter()
            found = engine.search(queries, options)
            seconds.append(time.perf_counter() - start)
        tokens = sum(len(best.tokens) + 1 for [best] in found)
        yield {"decoding": "base", "beam": beam, "tokens_per_second": tokens / min(seconds[1:])}
    generation = run("bench_generate.py", "--shape", "nanogpt", "--json")
    yield {"generation": "nanogpt", **generation}


def language_model(text: Path) -> Iterator[Record]:
    """Train nanoGPT's shape on Tiny Shakespeare, and evaluate it as its recipe says."""
    recipe = SCRIPTS.parent / "recipes" / "char_lm" / "tiny_shakespeare.yaml"
    seq2seq = [sys.executable, "-m", "seq2seq"]
    with tempfile.TemporaryDirectory() as folder:
        directory = f"{folder}/run"
        start = time.monotonic()
        subprocess.run(
            [*seq2seq, "train", str(recipe), f"data.text={text.resolve()}",
             f"data.store={folder}/store", "--run", directory],
            check=True,
        )  # fmt: skip
        minutes = (time.monotonic() - start) / 60
        done = subprocess.run(
            [*seq2seq, "evaluate", directory, "--split", "dev", "--stride", "32",
             "--random-windows", "12800", "--json"], check=True, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
    yield {"recipe": recipe.name, "minutes": minutes, **json.loads(done.stdout)}


def run_part(part: str, text: Path) -> None:
    """Print a part's results as they come."""
    parts = {"training": training, "cards": cards, "decoding": decoding}
    for record in language_model(text) if part == "language_model" else parts[part]():
        print(json.dumps({"part": part, "hardware": describe_device(device()), **record}),
              flush=True)  # fmt: skip


def main() -> None:
    """Start a process for each part."""
    parser = argparse.ArgumentParser(description="what the RESULTS files have of GPUs")
    parser.add_argument("--part", choices=PARTS, action="append", help="(all)")
    parser.add_argument("--text", type=Path, help="Tiny Shakespeare, one file")
    parser.add_argument("--minutes", type=float, default=10, help="for each part, at most (10)")
    parser.add_argument("-o", "--output", type=Path, help="add the results to this file, too")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        run_part(options.part[0], options.text)
        return
    parts, failed = options.part or PARTS, []
    if not torch.cuda.is_available():
        parser.error("there is no CUDA GPU here")
    if "language_model" in parts and not (options.text and options.text.is_file()):
        parser.error("the part language_model needs --text FILE")
    for part in parts:
        command = [sys.executable, __file__, "--here", "--part", part]
        command += ["--text", str(options.text)] if options.text else []
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert process.stdout
        # With all that it has started.
        limit = threading.Timer(60 * options.minutes, os.killpg, [process.pid, signal.SIGKILL])
        limit.start()
        for line in process.stdout:
            print(line, end="", flush=True)
            if options.output:
                with options.output.open("a", encoding="utf-8") as stream:
                    stream.write(line)
        failed += [part] if process.wait() else []
        limit.cancel()
    if failed:
        sys.exit(
            f"bench_gpu: error: {', '.join(failed)} failed, or took more than {options.minutes:g} "
            "minutes; the messages above say why"
        )


if __name__ == "__main__":
    main()
