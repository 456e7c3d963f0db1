"""Measure training speed and peak memory against fairseq, JoeyNMT and Hugging Face transformers.

Usage: python scripts/bench_train.py [--shape tiny|base] [--peer NAME ...] [--against CHECKOUT]
       [--corpus PREFIX] [--rounds N] [--json]

All systems train the same model on the same batches of real text, in turn (A B A B), one at a time
on the whole machine, each at every precision that it has and that this processor has instructions
for. Batches are what fairseq makes of the text: sentences of like length, up to 4,096 tokens with
padding. A ratio compares the fastest precisions, round by round, and is the median of the rounds.
Each peer gets its own environment under build/peers, created on first use; fairseq needs Python
3.11 (name it with --python). --against compares with another checkout of this repository instead.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seq2seq.config import ModelConfig, TokenizerConfig
from seq2seq.errors import UserError
from seq2seq.machine.devices import describe_device
from seq2seq.machine.precision import Precision, peak_matmul_flops, resolve_precision
from seq2seq.model.transformer import Transformer
from seq2seq.preparation.train_vocabulary import train_vocabulary

ROOT = Path(__file__).resolve().parent.parent
PEERS = {
    "fairseq": (["fairseq-fixed"], ["fp32"]),
    "joeynmt": (["joeynmt", "importlib_metadata"], ["fp32"]),
    "transformers": (["transformers"], ["fp32", "bf16"]),
}
"""Packages to install, and supported precisions on a CPU."""
SYSTEMS = ["seq2seq", *PEERS]
CPU = torch.device("cpu")
SHAPES = {
    "tiny": {"dim": 128, "ffn_dim": 256, "num_heads": 4, "layers": 4, "dropout": 0.3},
    "base": {"dim": 512, "ffn_dim": 2048, "num_heads": 8, "layers": 6, "dropout": 0.1},
}
VOCABULARIES = {"tiny": 10_000, "base": 32_000}
UPDATES = {"tiny": 16, "base": 4}
"""Updates per round, the same in all rounds; the first one is a warm-up."""
MAX_TOKENS = 4096
"""Maximum number of tokens of a batch, including padding, on the longer side."""


@dataclass
class Measured:
    """One system at one precision."""

    process: Any
    log: Path
    """Of what the process says besides its answers."""
    tokens_per_second: list[float] = field(default_factory=list)
    flops_per_second: list[float] = field(default_factory=list)
    peak_mib: float = 0.0

    def work(self, num_updates: int) -> dict[str, Any]:
        """Let it make some updates, and return its answer."""
        print(num_updates, file=self.process.stdin, flush=True)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Read one answer; raises UserError if the process has ended."""
        line = self.process.stdout.readline()
        if not line:
            last_words = self.log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise UserError(f"{' '.join(self.process.args)} has ended:\n{last_words}")
        return json.loads(line)


def peer_python(peer: str, python: str) -> Path:
    """Return the interpreter of a peer's environment, made if need be."""
    folder = ROOT / "build" / "peers" / peer
    done = folder / "installed"
    if not done.exists():
        print(f"installing {peer} into {folder}", file=sys.stderr)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
        subprocess.run([*pip, f"torch=={torch.__version__.partition('+')[0]}"], check=True)
        subprocess.run([*pip, *PEERS[peer][0]], check=True)
        done.touch()
    return folder / "bin" / "python"


def make_batches(prefix: str, pieces: int, count: int, seed: int) -> list[dict[str, Any]]:
    """Tokenize a corpus and return batches as fairseq makes them, in random order."""
    sides = {"source": Path(f"{prefix}.en"), "target": Path(f"{prefix}.de")}
    texts = {side: path.read_text(encoding="utf-8").splitlines() for side, path in sides.items()}
    everything = [*texts["source"], *texts["target"]]
    vocabulary = train_vocabulary(everything, TokenizerConfig(vocab_size=pieces), [])
    ids = {side: vocabulary.encode(lines) for side, lines in texts.items()}
    pairs = [
        pair for pair in zip(ids["source"], ids["target"], strict=True)
        if all(0 < len(row) <= 200 for row in pair)
    ]  # fmt: skip
    pairs.sort(key=lambda pair: (len(pair[1]), len(pair[0])))
    batches: list[list[Any]] = [[]]
    longest = 0
    for pair in pairs:
        longest = max(longest, *(len(row) + 1 for row in pair))
        if longest * (len(batches[-1]) + 1) > MAX_TOKENS:
            batches.append([])
            longest = max(len(row) + 1 for row in pair)
        batches[-1].append(pair)
    chosen = np.random.default_rng(seed).permutation(len(batches) - 1)[:count]
    return [
        {"source": [pair[0] for pair in batches[i]], "target": [pair[1] for pair in batches[i]]}
        for i in chosen
    ]


@contextmanager
def started(system: str, python: Path | str, shape: str, precision: str, work: Path
            ) -> Iterator[Measured]:  # fmt: skip
    """Start a system that is ready to train; it may be the path of another checkout."""
    root, name = (ROOT, system) if system in SYSTEMS else (Path(system), "seq2seq")
    worker = root / "scripts" / "train_speed" / "worker.py"
    command = [str(python), str(worker), name, shape, precision, str(work)]
    path = work.parent / f"{name}.{root.name}.{precision}.log"
    with path.open("w") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            env=os.environ | {"PYTHONPATH": str(root)},
        )  # fmt: skip
    try:
        measured = Measured(process, path)
        measured.answer()
        yield measured
    finally:
        process.kill()
        process.wait()


def measure(shape: str, peers: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """Return tokens per second, peak memory and ratios for one shape."""
    batches = make_batches(options.corpus, VOCABULARIES[shape], UPDATES[shape], options.seed)
    sizes = {**SHAPES[shape], "label_smoothing": 0.1, "rate": 1e-4}
    peaks = {precision: peak_matmul_flops(CPU, precision) for precision in native_precisions()}
    description = {"seed": options.seed, "shape": sizes, "vocab_size": VOCABULARIES[shape]}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work.json"
        work.write_text(json.dumps({shape: {**description, "batches": batches}}))
        # One peer after the other: the models of all would not fit into memory.
        duels = {peer: duel(peer, shape, work, batches, options) for peer in peers}
    return summary(duels, peaks)


@cache
def native_precisions() -> list[Precision]:
    """Return those whose products this processor does not have to emulate."""
    return ["fp32", "bf16"] if resolve_precision("auto", CPU) == "bf16" else ["fp32"]


def duel(
    peer: str, shape: str, work: Path, batches: Sequence[Any], options: argparse.Namespace
) -> dict[str, dict[Precision, Measured]]:
    """Let this toolkit and a peer train in turn, each at all its precisions."""
    python = peer_python(peer, options.python) if peer in PEERS else sys.executable
    pythons: dict[str, Path | str] = {"seq2seq": sys.executable, peer: python}
    with ExitStack() as stack:
        systems = {
            system: {
                precision: stack.enter_context(started(system, python, shape, precision, work))
                for precision in native_precisions()
                if system not in PEERS or precision in PEERS[system][1]
            }
            for system, python in pythons.items()
        }
        tokens, flops = count(batches, shape)
        for round_number in range(options.rounds + 1):
            for system, by_precision in systems.items():
                for precision, measured in by_precision.items():
                    answer = measured.work(len(batches))
                    measured.peak_mib = answer["peak_mib"]
                    speed = tokens / answer["seconds"]
                    print(f"{shape} {system} {precision}: {speed:,.0f} tokens/s", file=sys.stderr)
                    if round_number:
                        measured.tokens_per_second.append(speed)
                        measured.flops_per_second.append(flops / answer["seconds"])
    return systems


def count(batches: Sequence[dict[str, Any]], shape: str) -> tuple[int, float]:
    """Return the target tokens and the floating-point operations of some updates."""
    sizes = SHAPES[shape]
    config = ModelConfig(
        dim=int(sizes["dim"]), ffn_dim=int(sizes["ffn_dim"]), num_heads=int(sizes["num_heads"]),
        encoder_layers=int(sizes["layers"]), decoder_layers=int(sizes["layers"]),
    )  # fmt: skip
    source, target = (
        sum(len(row) + 1 for batch in batches for row in batch[side])
        for side in ("source", "target")
    )
    with torch.device("meta"):
        model = Transformer(config, VOCABULARIES[shape])
    return target, model.training_flops(source, target)


def summary(
    duels: dict[str, dict[str, dict[Precision, Measured]]], peaks: dict[Precision, float]
) -> dict[str, Any]:
    """Return medians, ratios to the peers and MFU."""

    def numbers(precision: Precision, runs: Sequence[Measured]) -> dict[str, float]:
        speeds = [speed for run in runs for speed in run.tokens_per_second]
        flops = [speed for run in runs for speed in run.flops_per_second]
        return {
            "tokens_per_second": round(statistics.median(speeds), 1),
            "peak_mib": round(max(run.peak_mib for run in runs)),
            "mfu": round(statistics.median(flops) / peaks[precision], 3),
        }

    result: dict[str, Any] = {
        "hardware": describe_device(CPU),
        "peak_gflops": {name: round(value / 1e9, 1) for name, value in peaks.items()},
        "systems": {
            "seq2seq": {
                precision: numbers(
                    precision, [duel["seq2seq"][precision] for duel in duels.values()]
                )
                for precision in peaks
            }
        },
        "ratio": {},
        "fp32_ratio": {},
        "memory_ratio": {},
    }
    for peer, systems in duels.items():
        result["systems"][peer] = {
            precision: numbers(precision, [run]) for precision, run in systems[peer].items()
        }
        own, other = fastest(systems["seq2seq"]), fastest(systems[peer])
        result["ratio"][peer] = ratio(own, other)
        result["fp32_ratio"][peer] = ratio(systems["seq2seq"]["fp32"], systems[peer]["fp32"])
        result["memory_ratio"][peer] = round(own.peak_mib / other.peak_mib, 3)
    return result


def fastest(by_precision: dict[Precision, Measured]) -> Measured:
    """Return a system at its fastest precision."""
    return max(by_precision.values(), key=lambda each: statistics.median(each.tokens_per_second))


def ratio(own: Measured, other: Measured) -> float:
    """Return the median, over the rounds, of how many times as fast `own` is."""
    pairs = zip(own.tokens_per_second, other.tokens_per_second, strict=True)
    return round(statistics.median(mine / theirs for mine, theirs in pairs), 3)


def table(shape: str, result: dict[str, Any]) -> str:
    """Return one shape's numbers as lines for people."""
    peaks = ", ".join(f"{n} {v:,.0f}" for n, v in result["peak_gflops"].items())
    lines = [f"{shape} on {result['hardware']}: matrix products reach {peaks} GFLOP/s"]
    for system, by_precision in result["systems"].items():
        for precision, numbers in by_precision.items():
            lines.append(
                f"  {system:13} {precision}  {numbers['tokens_per_second']:8,.0f} tokens/s  "
                f"{numbers['mfu']:4.0%} MFU  {numbers['peak_mib']:6,} MiB"
            )
    for peer, times in result["ratio"].items():
        lines.append(
            f"  {times:.2f} times as fast as {peer} ({result['fp32_ratio'][peer]:.2f} in fp32), "
            f"with {result['memory_ratio'][peer]:.2f} of its memory"
        )
    return "\n".join(lines)


def main() -> None:
    """Parse the arguments, measure, and print a table or one JSON object."""
    parser = argparse.ArgumentParser(description="training speed against other toolkits")
    parser.add_argument("--shape", choices=[*SHAPES], action="append", help="(all)")
    parser.add_argument("--peer", choices=[*PEERS], action="append", help="(all)")
    parser.add_argument("--against", metavar="CHECKOUT", help="another checkout, instead of peers")
    parser.add_argument("--corpus", help="PREFIX of PREFIX.en and PREFIX.de (LibreOffice's)")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (5)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--python", default=sys.executable, help="makes the peers' environments")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.corpus is None:
        options.corpus = str(ROOT / "data" / "libreoffice_en_de" / "train")
        prepare = ROOT / "recipes" / "libreoffice_en_de" / "prepare.py"
        subprocess.run([sys.executable, str(prepare)], cwd=ROOT, check=True, stdout=sys.stderr)
    peers = [str(Path(options.against).resolve())] if options.against else options.peer or [*PEERS]
    start = time.monotonic()
    results = {shape: measure(shape, peers, options) for shape in options.shape or [*SHAPES]}
    print(f"measured in {(time.monotonic() - start) / 60:.1f} min", file=sys.stderr)
    if not options.json:
        print("\n".join(table(shape, result) for shape, result in results.items()))
    elif len(results) == 1:
        [(shape, result)] = results.items()
        print(json.dumps({"shape": shape, **result}))
    else:
        ratios = {shape: result["ratio"] for shape, result in results.items()}
        print(json.dumps({"ratio": ratios, "shapes": results}))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"bench_train: error: {error}")
