"""Train one system on ready batches, as many updates at a time as standard input asks for.

Usage: python worker.py SYSTEM SHAPE PRECISION WORK.json, with the Python that has the system

Run by scripts/bench_train.py. It answers each line with one of JSON.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch


def main() -> None:
    """Build the system, then work on demand."""
    system, shape, precision, path = sys.argv[1:]
    work = json.loads(Path(path).read_text(encoding="utf-8"))[shape]
    # What a system prints by itself does not belong among the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**values: Any) -> None:
        print(json.dumps(values), file=answers, flush=True)

    torch.manual_seed(work["seed"])
    module = importlib.import_module(f"{system}_system")
    trained = module.System(work["shape"], work["vocab_size"], precision)
    batches = itertools.cycle(work["batches"])
    answer(ready=True)
    for line in sys.stdin:
        todo = [trained.prepare(batch) for batch in itertools.islice(batches, int(line))]
        start = time.perf_counter()
        for batch in todo:
            trained.update(batch)
        answer(
            seconds=time.perf_counter() - start,
            peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        )


if __name__ == "__main__":
    main()
