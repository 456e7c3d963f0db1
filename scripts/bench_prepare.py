"""Measure time and memory of `seq2seq prepare`, and of `train` up to its first batch.

Usage: python scripts/bench_prepare.py CORPUS [--pairs N ...] [--vocab-size V] [--json]

CORPUS is a .tsv or .tsv.gz of real pairs. Corpora of any size are made of it by joining one, two or
three random pairs, so that words and lengths stay natural and few pairs are alike. The tokenizer is
trained apart, on 500,000 pairs of the first, since its time does not grow with the corpus.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from seq2seq.config import TokenizerConfig
from seq2seq.data.corpus import TabFile
from seq2seq.data.vocabulary import train_vocabulary

PARTS = {1: 0.05, 2: 0.8, 3: 0.15}
"""How many pairs are joined, and how often."""
TOKENIZER_PAIRS = 500_000
FIRST_BATCH = """
import sys
from seq2seq.training import run
from seq2seq.cli import main
def trainer(config, folder, model, tokenizer, data, *rest):
    batch = next(data.epoch(0))
    print(batch.num_labels, flush=True)
    sys.exit()
run.Trainer = trainer
main(sys.argv[1:])
"""
"""Ends when the first batch is there."""


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


def watched(command: list[str], log: Path) -> dict[str, float]:
    """Run a command; return its minutes and the peak MiB of it and its children together.

    Memory that processes share is counted once (PSS), every fifth of a second.
    """
    start, peak = time.monotonic(), 0
    with log.open("w") as sink, psutil.Popen(command, stdout=sink, stderr=sink) as process:
        while process.poll() is None:
            total = 0
            for each in [process, *process.children(recursive=True)]:
                try:
                    total += each.memory_full_info().pss
                except psutil.Error:  # it has just ended
                    continue
            peak = max(peak, total)
            time.sleep(0.2)
    if process.returncode:
        raise SystemExit(log.read_text())
    return {"minutes": (time.monotonic() - start) / 60, "peak_mib": peak / 2**20}


def measure(folder: Path, pairs: list[tuple[str, str]], size: int) -> dict[str, float]:
    """Prepare a corpus of this size, and let training come to its first batch."""
    write_corpus(pairs, folder / "train", size, seed=2)
    recipe = folder / f"recipe{size}.yaml"
    recipe.write_text(
        f"data: {{source: en, target: de, train: {folder}/train, dev_size: 2000, "
        f"store: {folder}/store}}\ntokenizer: {{models: [{folder}/own.model]}}\n"
        "model: {dim: 64, ffn_dim: 64, num_heads: 2, encoder_layers: 1, decoder_layers: 1}\n"
    )
    program = [sys.executable, "-m", "seq2seq"]
    result = watched([*program, "prepare", str(recipe)], folder / "log")
    [manifest] = (folder / "store").glob(f"recipe{size}-*/manifest.json")
    facts = json.loads(manifest.read_text())["splits"]["train"]
    command = [sys.executable, "-c", FIRST_BATCH, "train", str(recipe), "--run", f"{folder}/run"]
    first = watched(command, folder / "log")
    return {
        "pairs": size,
        **result,
        "duplicates_percent": 100 * facts["dropped"].get("duplicates", 0) / size,
        "target_tokens_per_pair": facts["target_tokens"] / facts["pairs"],
        "store_mib": sum(path.stat().st_size for path in manifest.parent.iterdir()) / 2**20,
        "seconds_to_first_batch": 60 * first["minutes"],
        "peak_mib_at_first_batch": first["peak_mib"],
    }


def main() -> None:
    """Measure every size and print a line, or one JSON object."""
    parser = argparse.ArgumentParser(description="time and memory of `seq2seq prepare`")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--pairs", type=int, nargs="+", default=[1_000_000, 4_500_000])
    parser.add_argument("--vocab-size", type=int, default=37_000)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    pairs = list(TabFile(options.corpus))
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(pairs, folder / "sample", TOKENIZER_PAIRS, seed=1)
        lines = (line for language in ("en", "de")
                 for line in (folder / f"sample.{language}").open(encoding="utf-8"))  # fmt: skip
        config = TokenizerConfig(vocab_size=options.vocab_size)
        vocabulary = train_vocabulary(map(str.strip, lines), config, [])
        (folder / "own.model").write_bytes(vocabulary.model)
        for size in options.pairs:
            results.append(measure(folder, pairs, size))
            if not options.json:
                print("  ".join(f"{key} {value:,.1f}" for key, value in results[-1].items()))
    if options.json:
        print(json.dumps({"prepare": results}))


if __name__ == "__main__":
    main()
