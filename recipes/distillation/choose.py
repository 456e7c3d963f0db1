"""Write the candidate of each n-best list that is most similar to the reference (sentence chrF2).

Usage: python recipes/distillation/choose.py NBEST.jsonl REFERENCES > CHOSEN

NBEST.jsonl is the output of `seq2seq translate --json --nbest N`. A line that was not translated
keeps its reference.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sacrebleu.metrics.chrf import CHRF


def main(nbest: Path, references: Path) -> None:
    """Write one line per n-best list to standard output."""
    metric = CHRF()
    with (
        nbest.open(encoding="utf-8", newline="\n") as lists,
        references.open(encoding="utf-8", newline="\n") as lines,
    ):
        for line, reference in zip(lists, lines, strict=True):
            reference = reference.rstrip("\n")
            texts = [candidate["text"] for candidate in json.loads(line).get("nbest", [])]
            scores = [metric.sentence_score(text, [reference]).score for text in texts]
            best = texts[scores.index(max(scores))] if texts else reference
            sys.stdout.buffer.write(f"{best}\n".encode())


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
