"""Measure time, memory and disk use of `seq2seq prepare`, and of `train` up to its first batch.

Usage: python scripts/bench_prepare.py CORPUS [--pairs N ...] [--vocab-size V] [--kill-after S]
           [--json]

CORPUS is a .tsv or .tsv.gz of real pairs. Larger corpora are synthesised from it: each pair joins
one, two or three random pairs. Words and lengths stay natural, and few pairs are duplicates. The
tokenizer is trained separately, on 500,000 such pairs: its time does not grow with the corpus. With
--kill-after each preparation is killed after S seconds, and the second attempt is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import torch

from seq2seq.config import CorpusConfig, PairsConfig
from seq2seq.data.store import Store
from seq2seq.machine.devices import describe_device
from seq2seq.preparation.corpora import open_corpus

PARTS = {1: 0.05, 2: 0.8, 3: 0.15}
"""Probability of each number of joined pairs."""
TOKENIZER_PAIRS = 500_000
TOKENIZER = """
import sys
from pathlib import Path
from seq2seq.config import TokenizerConfig
from seq2seq.data.vocabulary import train_vocabulary
folder = Path(sys.argv[1])
lines = (line.strip() for language in ("en", "de")
         for line in (folder / f"sample.{language}").open(encoding="utf-8"))
vocabulary = train_vocabulary(lines, TokenizerConfig(vocab_size=int(sys.argv[2])), [])
(folder / "own.model").write_bytes(vocabulary.model)
"""
FIRST_BATCH = """
import sys
from seq2seq.training import run
from seq2seq.cli import main
def trainer(config, folder, tokenizer, data, *rest):
    batch = next(data.updates(0))
    print(batch.num_labels, flush=True)
    sys.exit()
run.Trainer = trainer
main(sys.argv[1:])
"""
"""Program that trains up to the first batch."""


def write_corpus(pairs: list[tuple[str, str]], prefix: Path, size: int, seed: int) -> None:
    """Write PREFIX.en and PREFIX.de with `size` lines each."""
    random = np.random.default_rng(seed)
    counts = random.choice([*PARTS], size, p=[*PARTS.values()])
    with (
        Path(f"{prefix}.en").open("w", encoding="utf-8") as source,
        Path(f"{prefix}.de").open("w", encoding="utf-8") as target,
    ):
        for count in counts.tolist():
            chosen = [pairs[i] for i in random.integers(0, len(pairs), count).tolist()]
            for file, side in zip((source, target), zip(*chosen, strict=True), strict=True):
                file.write(" ".join(side) + "\n")


def memory(process: int) -> tuple[int, int]:
    """Return the proportional set size and the anonymous memory of a process, in bytes."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:  # the process has just ended
        return 0, 0
    kib = {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines()[1:]}
    return 1024 * kib["Pss"], 1024 * kib["Anonymous"]


def disk_use(folder: Path) -> int:
    """Return the size of all files in a folder, in bytes. Files may vanish meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def measured_run(command: list[str], log: Path, folder: Path) -> dict[str, float]:
    """Run a command; return its minutes, and its peak use of memory and disk in MiB.

    Memory includes child processes, with shared memory counted once. Disk use is the growth of
    `folder`. Both are sampled five times a second.
    """
    start, peak, private, disk, disk_before = time.monotonic(), 0, 0, 0, disk_use(folder)
    with log.open("w") as sink, psutil.Popen(command, stdout=sink, stderr=sink) as process:
        while process.poll() is None:
            tree = [process, *process.children(recursive=True)]
            sizes = [memory(member.pid) for member in tree]
            peak = max(peak, sum(total for total, _ in sizes))
            private = max(private, sum(anonymous for _, anonymous in sizes))
            disk = max(disk, disk_use(folder) - disk_before)
            time.sleep(0.2)
    if process.returncode:
        raise SystemExit(log.read_text())
    minutes = (time.monotonic() - start) / 60
    peaks = {"peak_mib": peak, "own_mib": private, "disk_mib": disk}
    return {"minutes": minutes, **{name: size / 2**20 for name, size in peaks.items()}}


def kill_after(command: list[str], seconds: float) -> None:
    """Start a command and kill it after some seconds; exit if its children survive."""
    with psutil.Popen(command, stderr=subprocess.DEVNULL) as process:
        time.sleep(seconds)
        children = process.children(recursive=True)
        process.kill()
    if psutil.wait_procs(children, timeout=10)[1]:
        raise SystemExit("bench_prepare: error: child processes survived the kill")


def drop_page_cache(folder: Path) -> None:
    """Drop the files of a folder from the page cache of the system."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(
    folder: Path, pairs: list[tuple[str, str]], size: int, kill_seconds: float | None
) -> dict[str, float]:
    """Measure the preparation of a corpus of `size` pairs, and training up to its first batch."""
    write_corpus(pairs, folder / "train", size, seed=2)
    recipe = folder / f"recipe{size}.yaml"
    recipe.write_text(
        f"data: {{source: en, target: de, train: {folder}/train, dev_size: 2000, "
        f"store: {folder}/store}}\ntokenizer: {{models: [{folder}/own.model]}}\n"
        "model: {dim: 64, ffn_dim: 64, num_heads: 2, encoder_layers: 1, decoder_layers: 1}\n"
    )
    command = [sys.executable, "-m", "seq2seq", "prepare", str(recipe)]
    (folder / "store").mkdir(exist_ok=True)
    if kill_seconds:
        kill_after(command, kill_seconds)
    result = measured_run(command, folder / "log", folder / "store")
    [manifest] = (folder / "store").glob(f"recipe{size}-*/manifest.json")
    facts = json.loads(manifest.read_text())["splits"]["train"]
    store = Store([manifest.parent / file for file in facts["files"]])
    command = [sys.executable, "-c", FIRST_BATCH, "train", str(recipe), "--run", f"{folder}/run"]
    warm = measured_run(command, folder / "log", folder / "run")
    drop_page_cache(manifest.parent)
    cold = measured_run(command, folder / "log", folder / "run")
    return {
        "pairs": size,
        "minutes": result["minutes"],
        "peak_mib": result["peak_mib"],
        "disk_mib": result["disk_mib"],
        "duplicates_percent": 100 * facts["dropped"].get("duplicates", 0) / size,
        "target_tokens_per_pair": float(store.lens[1].mean()),
        "store_mib": sum(path.stat().st_size for path in manifest.parent.iterdir()) / 2**20,
        "seconds_to_first_batch": 60 * warm["minutes"],
        "seconds_from_disk": 60 * cold["minutes"],
        "train_mib": warm["peak_mib"],
        "train_own_mib": warm["own_mib"],
    }


def show(result: dict[str, float]) -> None:
    """Print the measurements of one size on a line."""
    print("  ".join(f"{key} {value:,.1f}" for key, value in result.items()), flush=True)


def main() -> None:
    """Measure all sizes, and print a line for each or one JSON object."""
    parser = argparse.ArgumentParser(description="time, memory and disk use of `seq2seq prepare`")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--pairs", type=int, nargs="+", default=[1_000_000, 4_500_000])
    parser.add_argument("--vocab-size", type=int, default=37_000)
    parser.add_argument("--kill-after", type=float, metavar="SECONDS")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    hardware = describe_device(torch.device("cpu"))
    print(hardware, file=sys.stderr)
    corpus = open_corpus(PairsConfig(), CorpusConfig(path=str(options.corpus)), "corpus")
    pairs = list(corpus.read())
    results: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(pairs, folder / "sample", TOKENIZER_PAIRS, seed=1)
        train = [sys.executable, "-c", TOKENIZER, str(folder), str(options.vocab_size)]
        tokenizer = measured_run(train, folder / "log", folder)
        if not options.json:
            show({"tokenizer_pairs": TOKENIZER_PAIRS, **tokenizer})
        for size in options.pairs:
            results.append(measure(folder, pairs, size, options.kill_after))
            if not options.json:
                show(results[-1])
    if options.json:
        print(json.dumps({"hardware": hardware, "tokenizer": tokenizer, "prepare": results}))


if __name__ == "__main__":
    main()
