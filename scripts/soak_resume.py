"""Kill a training run (one thread) repeatedly and compare its result with an uninterrupted run.

    python scripts/soak_resume.py --kills 200

Kills come at random times of the whole run, including start-up and checkpoint writes. A last kill
comes while the last checkpoint is replaced. Each start is the `train` command in a fork of this
process. torch is imported once, before the forks, since the import takes longer than the rest. The
exit code is 1 unless weights, optimiser states and losses are bit-identical.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

# Imported once, before the forks, since the imports are slow.
import datasets  # noqa: F401
import torch
import torch._dynamo

import seq2seq.evaluation.evaluate
import seq2seq.training.run  # noqa: F401
from seq2seq.cli import main as seq2seq_command
from seq2seq.files import sha256_of

STEPS_PER_KILL = 30
MAX_PROGRESS = 30
"""Maximum number of updates between two kills, measured at checkpoints."""
CLOCK = ("minutes", "tokens_per_second", "memory_gib")
"""Metrics that depend on time and machine, and may differ."""
os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def write_recipe(folder: Path, max_steps: int) -> Path:
    """Write a small corpus and a recipe with dropout and frequent checkpoints and validations."""
    rng = random.Random(5)
    for split, count in (("train", 400), ("dev", 8)):
        rows = [rng.choices("abcdefghij", k=rng.randint(3, 9)) for _ in range(count)]
        (folder / f"{split}.en").write_text("".join(" ".join(row) + "\n" for row in rows))
        (folder / f"{split}.de").write_text("".join(" ".join(row[::-1]) + "\n" for row in rows))
    recipe = folder / "soak.yaml"
    recipe.write_text(f"""
data: {{source: en, target: de, train: {folder}/train, dev: {folder}/dev, store: {folder}/store}}
tokenizer: {{kind: char, vocab_size: 400}}
model: {{dim: 32, ffn_dim: 64, num_heads: 2, encoder_layers: 1, decoder_layers: 1, dropout: 0.2}}
training:
  max_steps: {max_steps}
  batch_tokens: 300
  micro_batch_tokens: 200
  schedule: inverse_sqrt
  lr: 0.003
  warmup_steps: 50
  optimizer: muon
  precision: fp32
  log_every: 10
  checkpoint_every: 13
  validate_every: 100
  validate_every_epochs: null
  keep_last: 3
  keep_best: 2
  average_last: 2
decoding: {{max_extra: 5}}
""")
    return recipe


def start(recipe: Path, run: Path, prepare: Callable[[], None] = lambda: None) -> BaseProcess:
    """Start the `train` command in a fork, after calling `prepare` there."""
    arguments = recipe, run, prepare
    process = multiprocessing.get_context("fork").Process(target=_train, args=arguments)
    process.start()
    return process


def _train(recipe: Path, run: Path, prepare: Callable[[], None]) -> None:
    prepare()
    with log_of(run).open("w") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    torch.set_num_threads(1)  # OMP_NUM_THREADS is set after the import of torch
    seq2seq_command(["train", str(recipe), "--run", str(run)])


def kill_in_replacement() -> None:
    """Let this process kill itself when the folder that it replaces has been renamed."""
    rename = Path.rename

    def killed(path: Path, target: Path) -> Path:
        renamed = rename(path, target)
        if target.name.endswith(".old.tmp"):
            print(f"killed while {path.name} was replaced", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return renamed

    Path.rename = killed  # type: ignore[method-assign,assignment]


def log_of(run: Path) -> Path:
    """Return the path of the log of the last start of a run."""
    return run.with_suffix(".log")


def finish(recipe: Path, run: Path) -> float:
    """Run to the end; return the duration in seconds."""
    began = time.monotonic()
    process = start(recipe, run)
    process.join()
    if process.exitcode:
        sys.exit(f"the run failed with code {process.exitcode}:\n{log_of(run).read_text()}")
    return time.monotonic() - began


def newest_step(run: Path) -> int:
    """Return the update number of the newest checkpoint; 0 without checkpoints."""
    paths = run.glob("checkpoints/step_*/training.json")
    return max((int(path.parent.name.removeprefix("step_")) for path in paths), default=0)


def final_state(run: Path, max_steps: int) -> dict[str, object]:
    """Return checksums of models and optimiser states, links, and the metrics without `CLOCK`."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    metrics = [{k: v for k, v in record.items() if k not in CLOCK} for record in records]
    files = sorted(path for path in run.rglob("*.safetensors"))
    sums = {str(path.relative_to(run)): sha256_of(path) for path in files}
    if f"checkpoints/step_{max_steps}/training.safetensors" not in sums:
        sys.exit(f"{run} has no checkpoint of update {max_steps}")
    links = {name: str((run / name).readlink()) for name in ("last", "best", "averaged")}
    return sums | links | {"metrics": metrics}


def soak(folder: Path, kills: int, seed: int) -> bool:
    """Kill a run `kills` times; return whether its result equals an uninterrupted run's."""
    rng = random.Random(seed)
    max_steps = STEPS_PER_KILL * kills
    recipe = write_recipe(folder, max_steps)
    run = folder / "run"
    total = finish(recipe, folder / "steady")
    idle = finish(recipe, folder / "steady")  # a finished run: start-up alone
    span = (total - idle) / kills
    print(f"uninterrupted: {total:.1f} s, {idle:.1f} s of it start-up; {max_steps} updates")
    done = 0
    while done < kills:
        starting = rng.random() < 0.3
        moment = rng.uniform(0, idle) if starting else idle + rng.uniform(0, 2 * span)
        before, began = newest_step(run), time.monotonic()
        process = start(recipe, run)
        # On a fast machine the run must not finish before all kills are done.
        while (
            process.is_alive()
            and time.monotonic() - began < moment
            and newest_step(run) - before < MAX_PROGRESS
        ):
            time.sleep(0.01)
        if not process.is_alive():
            print(f"the run ended before the kill:\n{log_of(run).read_text()}")
            break
        process.kill()
        process.join()
        done += 1
        drafts = sorted(path.name for path in run.rglob(".*.tmp")) if run.exists() else []
        seconds = time.monotonic() - began
        print(
            f"kill {done:3}  after {seconds:5.2f} s  newest checkpoint: {newest_step(run):5}"
            f"  temporary files: {', '.join(drafts) or 'none'}"
        )
    process = start(recipe, run, kill_in_replacement)
    process.join()
    finish(recipe, run)
    if (
        process.exitcode != -signal.SIGKILL
        or f"resuming {run} after update {max_steps}" not in log_of(run).read_text()
    ):
        sys.exit(f"the last checkpoint was not replaced, or was lost:\n{log_of(run).read_text()}")
    same = final_state(run, max_steps) == final_state(folder / "steady", max_steps)
    print(f"{done} kills, {'bit-identical' if same else 'NOT bit-identical'}")
    return same and done == kills


def main() -> None:
    """Parse the arguments and run the soak test."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(0 if soak(Path(folder), options.kills, options.seed) else 1)


if __name__ == "__main__":
    main()
