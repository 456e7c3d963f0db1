"""Measure the training speed of several processes, compared with one.

Usage: python scripts/bench_distributed.py [--processes 1 2 4 1+1] [--shape tiny|base]
           [--tokens N] [--accumulate K] [--updates N] [--rounds N] [--gpu] [--json]

Each process trains on --tokens target tokens per update, in K micro-batches and with one thread, so
work grows with the processes. 1+1 are two launches with an address each (127.0.0.1, 127.0.0.2),
which find each other as two machines do. Efficiency is their speed over that of as many single
ones; where there are fewer cores than processes, of as many as there are cores. Rounds take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from seq2seq.machine.devices import describe_device
from seq2seq.machine.threads import usable_cores

SHAPES = {
    "tiny": "{dim: 128, ffn_dim: 256, num_heads: 4, encoder_layers: 4, decoder_layers: 4}",
    "base": "{dim: 512, ffn_dim: 2048, num_heads: 8, encoder_layers: 6, decoder_layers: 6}",
}
PAIRS = 20_000


def write_corpus(folder: Path) -> None:
    """Write sentences of about 25 words of a made-up language, and their translations."""

    random = np.random.default_rng(1)
    for name, size in (("train", PAIRS), ("dev", 20)):
        lens = np.clip(random.lognormal(3.1, 0.4, size), 3, 80).astype(int)
        words = [(random.zipf(1.3, count) % 8000).tolist() for count in lens]
        for language in ("en", "de"):
            lines = (" ".join(f"{language}{word}" for word in line) + "\n" for line in words)
            (folder / f"{name}.{language}").write_text("".join(lines))


def launches(setup: str) -> list[list[str]]:
    """Return the arguments that start `python -m`, for each launch of a setup: "2" or "1+1"."""
    counts = setup.split("+")
    if setup == "1":
        return [["seq2seq"]]
    if len(counts) == 1:
        return [["accelerate.commands.launch", "--multi_gpu", "--num_processes", setup,
                 "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no",
                 "-m", "seq2seq"]]  # fmt: skip
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [
        ["torch.distributed.run", "--nnodes", str(len(counts)), "--node_rank", str(rank),
         "--nproc_per_node", count, "--master_addr", "127.0.0.1", "--master_port", str(port),
         "--local_addr", f"127.0.0.{rank + 1}", "-m", "seq2seq"]
        for rank, count in enumerate(counts)
    ]  # fmt: skip


def num_processes(setup: str) -> int:
    """Return how many processes a setup has."""
    return sum(map(int, setup.split("+")))


def measure(folder: Path, shape: str, setup: str, options: argparse.Namespace) -> float:
    """Train for some updates; return all processes' target tokens per second."""
    recipe, place = folder / "bench.yaml", Path(tempfile.mkdtemp(dir=folder))
    recipe.write_text(
        f"data: {{source: en, target: de, train: {folder}/train, dev: {folder}/dev, "
        f"store: {folder}/store}}\ntokenizer: {{vocab_size: 8000}}\nmodel: {SHAPES[shape]}\n"
    )
    overrides = {
        "max_steps": options.updates,
        "batch_tokens": num_processes(setup) * options.tokens,
        "micro_batch_tokens": options.tokens // options.accumulate,
        "log_every": max(1, options.updates // 2),
        "validate_every_epochs": "null",
        "validation_sentences": 1,
        "best_by": "nll",
        "checkpoint_every_minutes": "null",
    }
    # In a separate folder: torch's launcher has an option --run, too.
    arguments = ["train", str(recipe)]
    arguments += [f"training.{key}={value}" for key, value in overrides.items()]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    if not options.gpu:
        environment |= {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", *launch, *arguments], env=environment, text=True, cwd=place,
            stdout=subprocess.DEVNULL, stderr=(place / f"log{number}").open("w"),
        )
        for number, launch in enumerate(launches(setup))
    ]  # fmt: skip
    codes = [process.wait() for process in started]
    if any(codes):
        raise SystemExit("".join(log.read_text() for log in sorted(place.glob("log*"))))
    lines = (place / "runs" / "bench" / "metrics.jsonl").read_text().splitlines()
    records = [record for record in map(json.loads, lines) if record["kind"] == "train"]
    return records[-1]["tokens_per_second"]  # the second half; the first warms up


def main() -> None:
    """Parse the arguments, measure in turns, and print a table or one JSON object."""
    parser = argparse.ArgumentParser(description="efficiency of several processes")
    parser.add_argument("--processes", nargs="+", default=["1", "2", "4", "1+1"])
    parser.add_argument("--shape", choices=[*SHAPES], default="tiny")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--accumulate", type=int, default=1, metavar="K")
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gpu", action="store_true", help="a GPU for each process (a core)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.gpu and not torch.cuda.is_available():
        parser.error("--gpu: there is no CUDA GPU here")
    speeds: dict[str, list[float]] = {setup: [] for setup in options.processes}
    with tempfile.TemporaryDirectory() as name:
        write_corpus(Path(name))
        for _ in range(options.rounds):
            for setup, found in speeds.items():
                found.append(measure(Path(name), options.shape, setup, options))
    cores = torch.accelerator.device_count() if options.gpu else usable_cores()
    medians = {setup: statistics.median(found) for setup, found in speeds.items()}
    first = min(medians, key=num_processes)
    one = medians[first] / num_processes(first)
    hardware = describe_device(torch.device("cuda" if options.gpu else "cpu"))
    rows = [
        {"processes": setup, "tokens_per_second": speed,
         "efficiency": speed / (min(num_processes(setup), cores) * one)}
        for setup, speed in medians.items()
    ]  # fmt: skip
    if options.json:
        sizes = {"shape": options.shape, "tokens": options.tokens, "hardware": hardware}
        print(json.dumps({"distributed": rows, **sizes}))
        return
    print(hardware)
    for row in rows:
        print(f"{row['processes']:>3} processes  {row['tokens_per_second']:10,.0f} tokens/s  "
              f"{row['efficiency']:.0%}")  # fmt: skip


if __name__ == "__main__":
    main()
