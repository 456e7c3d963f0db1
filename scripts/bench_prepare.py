"""Measure time and peak memory of `seq2seq prepare` on corpora of any size.

Usage: python scripts/bench_prepare.py [--pairs N ...] [--json]

The corpora are made of words drawn by Zipf's law, so that sentences, pieces and repetitions are
of natural size. Each size runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

VOCABULARY = 50_000
WORDS_PER_SENTENCE = 20


def write_corpus(prefix: Path, num_pairs: int, seed: int) -> None:
    """Write PREFIX.en and PREFIX.de with `num_pairs` lines each."""
    random = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    lexicon = {
        language: [
            "".join(random.choice(letters, size)) for size in random.integers(2, 10, VOCABULARY)
        ]
        for language in ("en", "de")
    }
    with (
        Path(f"{prefix}.en").open("w", encoding="utf-8") as source,
        Path(f"{prefix}.de").open("w", encoding="utf-8") as target,
    ):
        for _ in range(num_pairs):
            size = random.integers(1, 2 * WORDS_PER_SENTENCE)
            row = (random.zipf(1.3, size) % VOCABULARY).tolist()
            source.write(" ".join(lexicon["en"][i] for i in row) + "\n")
            target.write(" ".join(lexicon["de"][i] for i in row) + "\n")


def measure(num_pairs: int) -> dict[str, float]:
    """Prepare a corpus of this size; return minutes and peak megabytes of the process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(folder / "train", num_pairs, seed=1)
        write_corpus(folder / "dev", 1000, seed=2)
        recipe = folder / "recipe.yaml"
        recipe.write_text(
            f"data: {{source: en, target: de, train: {folder}/train, dev: {folder}/dev, "
            f"store: {folder}/store}}\ntokenizer: {{vocab_size: 8000, sample: 200000}}\n"
        )
        start = time.monotonic()
        # Reports on itself: ru_maxrss of children would mix the sizes up.
        code = (
            "import resource, sys; from seq2seq.cli import main; main(sys.argv[1:]); "
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        )
        output = subprocess.check_output(
            [sys.executable, "-c", code, "prepare", str(recipe)], text=True
        )
        size = sum(path.stat().st_size for path in (folder / "store").rglob("*.arrow"))
        return {
            "pairs": num_pairs,
            "minutes": (time.monotonic() - start) / 60,
            "peak_mb": int(output.split()[-1]) / 1024,
            "store_mb": size / 2**20,
        }


def main() -> None:
    """Measure every size and print a line, or one JSON object."""
    parser = argparse.ArgumentParser(description="time and peak memory of `seq2seq prepare`")
    parser.add_argument("--pairs", type=int, nargs="+", default=[1_000_000, 2_000_000])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    results = [measure(num_pairs) for num_pairs in options.pairs]
    if options.json:
        print(json.dumps({"prepare": results}))
        return
    for result in results:
        print("  ".join(f"{name} {value:,.1f}" for name, value in result.items()))


if __name__ == "__main__":
    main()
