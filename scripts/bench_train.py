"""Measure training speed and peak memory against fairseq, or another version of this toolkit.

Usage: python scripts/bench_train.py [--shape tiny|base] [--peer fairseq | --against CHECKOUT]
       [--corpus PREFIX] [--rounds N] [--json]

Both systems train the same model on the same batches of real text. They take turns (A B A B), with
the whole machine for one system at a time, at each precision that the system supports and the
processor has instructions for. Batches are made as in fairseq: sentences of similar length, up to
4,096 tokens with padding. Ratios are medians over the rounds, at the fastest precision of each
system. fairseq is installed into build/peers/fairseq on first use. It needs Python 3.11 (--python).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seq2seq.config import ModelConfig, TokenizerConfig
from seq2seq.data.vocabulary import train_vocabulary
from seq2seq.machine.devices import describe_device
from seq2seq.machine.precision import DTYPES, Precision, matmul_flops, resolve_precision
from seq2seq.model.transformer import Transformer

ROOT = Path(__file__).resolve().parent.parent
FAIRSEQ = "fairseq"
CPU = torch.device("cpu")
SHAPES = {
    "tiny": {"dim": 128, "ffn_dim": 256, "num_heads": 4, "layers": 4, "dropout": 0.3},
    "base": {"dim": 512, "ffn_dim": 2048, "num_heads": 8, "layers": 6, "dropout": 0.1},
}
VOCABULARIES = {"tiny": 10_000, "base": 32_000}
UPDATES = {"tiny": 16, "base": 4}
"""Updates per round. The first round is a warm-up."""
MAX_TOKENS = 4096
"""Maximum number of tokens of a batch, including padding, on the longer side."""

System = dict[Precision, "Measured"]


@dataclass
class Measured:
    """Training process of one system at one precision."""

    process: Any
    log: Path
    """File with the standard error of the process."""
    seconds: list[float] = field(default_factory=list)
    """Duration of each round, in seconds."""
    peak_mib: float = 0.0

    def work(self, num_updates: int) -> float:
        """Make some updates in the process; return their duration in seconds."""
        print(num_updates, file=self.process.stdin, flush=True)
        answer = self.answer()
        self.peak_mib = answer["peak_mib"]
        return answer["seconds"]

    def answer(self) -> dict[str, Any]:
        """Read one JSON answer; exit if the process has ended."""
        line = self.process.stdout.readline()
        if not line:
            last_words = self.log.read_text(encoding="utf-8", errors="replace")[-2000:]
            sys.exit(f"bench_train: error: {' '.join(self.process.args)} has ended:\n{last_words}")
        return json.loads(line)


def fairseq_python(python: str) -> str:
    """Return the interpreter of the fairseq environment. Install fairseq if needed."""
    folder = ROOT / "build" / "peers" / FAIRSEQ
    done = folder / "installed"
    if not done.exists():
        print(f"installing fairseq into {folder}", file=sys.stderr)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
        subprocess.run([*pip, f"torch=={torch.__version__.partition('+')[0]}"], check=True)
        subprocess.run([*pip, "fairseq-fixed"], check=True)
        done.touch()
    return str(folder / "bin" / "python")


def make_batches(prefix: str, pieces: int, count: int, seed: int) -> list[dict[str, Any]]:
    """Tokenize a corpus and return `count` random batches, made as in fairseq."""
    source, target = (
        Path(f"{prefix}.{language}").read_text(encoding="utf-8").splitlines()
        for language in ("en", "de")
    )
    vocabulary = train_vocabulary([*source, *target], TokenizerConfig(vocab_size=pieces), [])
    ids = zip(vocabulary.encode(source), vocabulary.encode(target), strict=True)
    pairs = [pair for pair in ids if all(0 < len(row) <= 200 for row in pair)]
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
def started(command: Sequence[str], root: Path, log: Path) -> Iterator[Measured]:
    """Start the process of a system and wait until it is ready; kill it at the end."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | {"PYTHONPATH": str(root)},
        )
    try:
        measured = Measured(process, log)
        measured.answer()
        yield measured
    finally:
        process.kill()
        process.wait()


def measure(shape: str, peer: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train this toolkit and a peer in turn; return speed, memory and ratios."""
    batches = make_batches(options.corpus, VOCABULARIES[shape], UPDATES[shape], options.seed)
    native: list[Precision] = ["fp32"]
    if resolve_precision("auto", CPU) == "bf16":
        native.append("bf16")
    peaks = {precision: matmul_flops(CPU, DTYPES[precision], 1024) for precision in native}
    sizes = {**SHAPES[shape], "label_smoothing": 0.1, "rate": 1e-4}
    work = {"seed": options.seed, "shape": sizes, "vocab_size": VOCABULARIES[shape]}
    systems: dict[str, System] = {"seq2seq": {}, peer: {}}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        file = Path(name) / "work.json"
        file.write_text(json.dumps({shape: {**work, "batches": batches}}))
        for system in systems:
            is_fairseq = system == FAIRSEQ
            root = Path(system) if system == peer and not is_fairseq else ROOT
            worker = root / "scripts" / "train_speed" / "worker.py"
            python = fairseq_python(options.python) if is_fairseq else sys.executable
            for precision in native[:1] if is_fairseq else native:
                arguments = [FAIRSEQ if is_fairseq else "seq2seq", shape, precision, str(file)]
                log = file.with_name(f"{root.name}.{arguments[0]}.{precision}.log")
                started_system = started([python, str(worker), *arguments], root, log)
                systems[system][precision] = stack.enter_context(started_system)
        target_tokens, flops = count(batches, shape)
        for round_number in range(options.rounds + 1):
            for system, by_precision in systems.items():
                for precision, measured in by_precision.items():
                    seconds = measured.work(len(batches))
                    speed = f"{target_tokens / seconds:,.0f} tokens/s"
                    print(f"{shape} {system} {precision}: {speed}", file=sys.stderr)
                    if round_number:
                        measured.seconds.append(seconds)
    return {
        "hardware": describe_device(CPU),
        "peak_gflops": {name: round(value / 1e9, 1) for name, value in peaks.items()},
        "systems": {
            system: {
                precision: {
                    "tokens_per_second": round(target_tokens / median_seconds(measured), 1),
                    "peak_mib": round(measured.peak_mib),
                    "mfu": round(flops / median_seconds(measured) / peaks[precision], 3),
                }
                for precision, measured in by_precision.items()
            }
            for system, by_precision in systems.items()
        },
        **ratios(systems["seq2seq"], peer, systems[peer]),
    }


def count(batches: Sequence[dict[str, Any]], shape: str) -> tuple[int, int]:
    """Return the number of target tokens and of floating-point operations of the batches."""
    sizes = SHAPES[shape]
    layers = int(sizes["layers"])
    config = ModelConfig(
        dim=int(sizes["dim"]),
        ffn_dim=int(sizes["ffn_dim"]),
        num_heads=int(sizes["num_heads"]),
        encoder_layers=layers,
        decoder_layers=layers,
    )
    source, target = (
        sum(len(row) + 1 for batch in batches for row in batch[side])
        for side in ("source", "target")
    )
    with torch.device("meta"):
        model = Transformer(config, VOCABULARIES[shape])
    # 6 operations per weight and token, forward and backward (Kaplan et al. 2020, section 2.1).
    encoder, weights = (
        sum(weight.numel() for weight in module.parameters() if weight.dim() == 2)
        for module in (model.encoder, model)
    )
    return target, 6 * (source * encoder + target * (weights - encoder))


def median_seconds(measured: Measured) -> float:
    """Return the median duration of a round, in seconds."""
    return statistics.median(measured.seconds)


def ratios(ours: System, peer: str, theirs: System) -> dict[str, Any]:
    """Return the speed and the peak memory of this toolkit, relative to a peer."""
    first, second = (min(system.values(), key=median_seconds) for system in (ours, theirs))
    return {
        "ratio": {peer: speed_ratio(first, second)},
        "fp32_ratio": {peer: speed_ratio(ours["fp32"], theirs["fp32"])},
        "memory_ratio": {peer: round(first.peak_mib / second.peak_mib, 3)},
    }


def speed_ratio(first: Measured, second: Measured) -> float:
    """Return the speed of the first system relative to the second, median over the rounds."""
    pairs = zip(first.seconds, second.seconds, strict=True)
    return round(statistics.median(b / a for a, b in pairs), 3)


def table(shape: str, result: dict[str, Any]) -> str:
    """Return the results of one shape as a table."""
    peaks = ", ".join(f"{name} {value:,.0f}" for name, value in result["peak_gflops"].items())
    lines = [f"{shape} on {result['hardware']}: matrix multiplication at {peaks} GFLOP/s"]
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
    parser = argparse.ArgumentParser(description="training speed against fairseq")
    parser.add_argument("--shape", choices=[*SHAPES], action="append", help="(all)")
    parser.add_argument("--peer", choices=[FAIRSEQ], default=FAIRSEQ)
    parser.add_argument("--against", metavar="CHECKOUT", help="another checkout instead of a peer")
    parser.add_argument("--corpus", help="PREFIX of PREFIX.en and PREFIX.de (LibreOffice's)")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (5)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--python", default=sys.executable, help="interpreter for fairseq")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.corpus is None:
        options.corpus = str(ROOT / "data" / "libreoffice_en_de" / "train")
        prepare = ROOT / "recipes" / "libreoffice" / "prepare.py"
        subprocess.run([sys.executable, str(prepare)], cwd=ROOT, check=True, stdout=sys.stderr)
    peer = str(Path(options.against).resolve()) if options.against else options.peer
    results = {shape: measure(shape, peer, options) for shape in options.shape or [*SHAPES]}
    if not options.json:
        print("\n".join(table(shape, result) for shape, result in results.items()))
    elif len(results) == 1:
        [(shape, result)] = results.items()
        print(json.dumps({"shape": shape, **result}))
    else:
        by_shape = {shape: result["ratio"] for shape, result in results.items()}
        print(json.dumps({"ratio": by_shape, "shapes": results}))


if __name__ == "__main__":
    main()
