"""Train fairseq and this toolkit side by side: same data, tokens and shape; BLEU over minutes.

Usage: python scripts/time_to_quality.py RUN [--minutes N] [--every N] [--rate R] [--warmup N]
           [-o DIR] [--python PYTHON]

Trains on the ids of RUN's tokenizer, with fairseq's recipe for small data (Adam, inverse square
root, peak 0.005, 2,000 updates of warm-up, 4,096 tokens), or with the rate and the warm-up that are
given, and no validation on the clock. Every N updates a checkpoint is copied; afterwards
each translates the development set greedily, as this toolkit's validations do, and its BLEU goes
to DIR/metrics.jsonl with the minutes that fairseq had trained by then, for `seq2seq report`. The
last one translates the test set too, with the beam of RUN's recipe. What DIR holds already is not
trained again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from bench_train import peer_python

from seq2seq.config import Config
from seq2seq.data.prepared import PreparedData
from seq2seq.data.store import Store
from seq2seq.errors import UserError
from seq2seq.evaluation.metrics import score
from seq2seq.model.saved import describe_model, find_model
from seq2seq.task import load_task

SUBSETS = {"train": "train", "dev": "valid", "test": "test"}
"""fairseq's names of the splits."""


def write_ids(store: Store, prefix: Path) -> None:
    """Write a split's pairs as lines of numbers, which fairseq takes for words."""
    with (
        prefix.with_suffix(".src").open("w") as sources,
        prefix.with_suffix(".tgt").open("w") as targets,
    ):
        for start in range(0, len(store), 1000):
            numbers = np.arange(start, min(start + 1000, len(store)))
            for stream, rows in zip((sources, targets), store.pairs(numbers), strict=True):
                stream.writelines(" ".join(map(str, row.tolist())) + "\n" for row in rows)


def train(config: Config, folder: Path, programs: Path, options: argparse.Namespace) -> None:
    """Let fairseq prepare the lines, and train until the minutes are over."""
    model, training = config.model, config.training
    if not config.tokenizer.shared or training.r_drop or config.tokenizer.bpe_dropout:
        raise UserError("fairseq is given no R-Drop, no BPE-dropout and one vocabulary for both")
    if config.decoding.penalty_form != "power":
        raise UserError("fairseq's length penalty is decoding.penalty_form=power")
    binary = folder / "binary"
    shutil.rmtree(binary, ignore_errors=True)
    fairseq(
        programs, "preprocess", "--source-lang=src", "--target-lang=tgt", "--joined-dictionary",
        *(f"--{name}pref={folder}/{split}" for split, name in SUBSETS.items()),
        f"--destdir={binary}",
    )  # fmt: skip
    sides = [
        flag
        for side, layers in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers))
        for flag in (
            f"--{side}-embed-dim={model.dim}", f"--{side}-ffn-embed-dim={model.ffn_dim}",
            f"--{side}-attention-heads={model.num_heads}", f"--{side}-layers={layers}",
            *([f"--{side}-normalize-before"] if model.norm == "pre" else []),
        )
    ]  # fmt: skip
    fairseq(
        programs, "train", str(binary), "--arch=transformer", "--share-all-embeddings", *sides,
        f"--dropout={model.dropout}", "--optimizer=adam", "--adam-betas=(0.9,0.98)",
        "--lr-scheduler=inverse_sqrt", f"--lr={options.rate}",
        f"--warmup-updates={options.warmup}",
        "--criterion=label_smoothed_cross_entropy", f"--label-smoothing={training.label_smoothing}",
        "--max-tokens=4096", f"--stop-time-hours={options.minutes / 60}", "--cpu",
        "--disable-validation", f"--save-interval-updates={options.every}",
        "--no-epoch-checkpoints", f"--save-dir={folder}/checkpoints", "--seed=1",
        "--log-format=simple", "--log-interval=100",
    )  # fmt: skip


def fairseq(programs: Path, name: str, *arguments: str) -> str:
    """Run one of its programs; return what it prints."""
    command = [str(programs / f"fairseq-{name}"), *arguments]
    # It reads its own checkpoints with pickle, which torch no longer does unasked.
    own = {"CUDA_VISIBLE_DEVICES": "", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | own)
    if done.returncode:
        raise UserError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def bleu(
    checkpoint: Path,
    split: str,
    search: Sequence[str],
    *,
    folder: Path,
    programs: Path,
    data: PreparedData,
    tokenize: str,
) -> float:
    """Translate a split, and score it."""
    printed = fairseq(
        programs, "generate", str(folder / "binary"), f"--path={checkpoint}", "--cpu",
        f"--gen-subset={SUBSETS[split]}", *search,
        "--max-tokens=8192", "--max-len-a=1", "--max-len-b=50",
    )  # fmt: skip
    found = re.findall(r"^H-(\d+)\t[^\t]*\t(.*)$", printed, flags=re.MULTILINE)
    rows = {  # without its symbol for unknown words
        int(place): [int(word) for word in words.split() if word.isdigit()]
        for place, words in found
    }
    _, references = data.store(split).texts(None)
    # A model that has learned little leaves some sentences without any hypothesis.
    lines = data.tokenizer.target.decode([rows.get(place, []) for place in range(len(references))])
    return score(lines, [references], tokenize=tokenize)[0].value


def trained_seconds(checkpoint: Path, programs: Path) -> float:
    """Return how long fairseq had trained when it wrote a checkpoint."""
    code = (
        "import sys, torch; state = torch.load(sys.argv[1], weights_only=False);"
        "print(state['extra_state']['previous_training_time'])"
    )
    printed = subprocess.check_output([str(programs / "python"), "-c", code, str(checkpoint)])
    return float(printed)


def main() -> None:
    """Parse the arguments, train, score every checkpoint."""
    parser = argparse.ArgumentParser(description="fairseq's BLEU over minutes")
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--minutes", type=float, default=45)
    parser.add_argument("--every", type=int, default=100, help="updates between checkpoints (100)")
    parser.add_argument("--rate", type=float, default=0.005, help="fairseq's peak rate (0.005)")
    parser.add_argument("--warmup", type=int, default=2000, help="its updates of warm-up (2000)")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/fairseq"), metavar="DIR")
    parser.add_argument("--python", default=sys.executable, help="makes fairseq's environment")
    options = parser.parse_args()
    programs = peer_python("fairseq", options.python).parent
    config, _ = describe_model(find_model(options.run))
    data = load_task(config.task).prepare(config)
    folder = options.output.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for split in SUBSETS:
        write_ids(data.store(split), folder / split)
    if not (folder / "checkpoints" / "checkpoint_last.pt").exists():
        start = time.monotonic()
        train(config, folder, programs, options)
        print(f"trained in {(time.monotonic() - start) / 60:.1f} min", file=sys.stderr)
    checkpoints = {
        int(path.stem.split("_")[-1]): path
        for path in folder.glob("checkpoints/checkpoint_*_*.pt")
    }  # fmt: skip
    bleu_of = partial(
        bleu, folder=folder, programs=programs, data=data, tokenize=config.data.bleu_tokenizer
    )
    with (folder / "metrics.jsonl").open("w", encoding="utf-8") as stream:
        for step, path in sorted(checkpoints.items()):
            minutes = trained_seconds(path, programs) / 60
            record = {
                "kind": "validation", "step": step, "minutes": minutes,
                "bleu": bleu_of(path, "dev", ["--beam=1"]),
            }  # fmt: skip
            print(json.dumps(record), file=stream, flush=True)
            print(f"update {step}: {minutes:.1f} min, BLEU {record['bleu']:.2f}", flush=True)
    last, decoding = folder / "checkpoints" / "checkpoint_last.pt", config.decoding
    search = [f"--beam={decoding.beam}", f"--lenpen={decoding.length_penalty}"]
    minutes = trained_seconds(last, programs) / 60
    print(f"test set: {minutes:.1f} min, BLEU {bleu_of(last, 'test', search):.2f}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"time_to_quality: error: {error}")
