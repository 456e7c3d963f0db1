"""Worker process of scripts/bench_train.py: trains one system on given batches.

Usage: python worker.py SYSTEM SHAPE PRECISION WORK.json

Each line of standard input is a number of updates. The answer is a line of JSON.
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
    """Build the system, then train on request."""
    system, shape, precision, path = sys.argv[1:]
    work = json.loads(Path(path).read_text(encoding="utf-8"))[shape]
    # Other output of the system goes to standard error.
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
        prepared = [trained.prepare(batch) for batch in itertools.islice(batches, int(line))]
        start = time.perf_counter()
        for batch in prepared:
            trained.update(batch)
        answer(
            seconds=time.perf_counter() - start,
            peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        )


if __name__ == "__main__":
    main()
