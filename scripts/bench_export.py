"""Compare a run with its exports: lines that differ, BLEU and lines per second.

    python scripts/bench_export.py RUN --source FILE --target FILE [--lines 1000] [--rounds 3]

Each format that holds the model is exported to a temporary folder and searched by its own library,
greedily and with the beam of the recipe; the length penalty is length^alpha everywhere. The times,
text to text, are medians over rounds in which all take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench_decode import transformers

from seq2seq.data.lines import read_file
from seq2seq.decoding.translator import Translator
from seq2seq.errors import UserError
from seq2seq.evaluation.metrics import score
from seq2seq.export.export import export
from seq2seq.model.saved import is_exported

Translate = Callable[[Sequence[str], int], list[str]]
HF_BATCH = 64
"""Sentences per batch of transformers, sorted by length."""


def ours(folder: Path) -> Translate:
    """Return a function of texts and beam width, with this package's translator."""
    options: dict[str, Any] = {"penalty_form": "power", "coverage_penalty": 0.0}
    if not is_exported(folder):  # CTranslate2's search goes on for as long
        options |= {"precision": "fp32", "lookahead": 1000}
    translator = Translator.load(folder, retry_repetitions=False, **options)
    return lambda texts, beam: translator.translate(texts, beam=beam)


def hugging_face(folder: Path) -> Translate:
    """Return the same with transformers."""
    translate = transformers(str(folder), "fp32")
    return lambda texts, beam: translate(texts, beam, HF_BATCH)


def exports(run: Path, folder: Path) -> dict[str, Translate]:
    """Return the functions of the run and of each export that holds the model."""
    engines = {"seq2seq": ours(run)}
    for quantization in ("float32", "int8"):
        target = folder / quantization
        export([run], target, to="ctranslate2", quantization=quantization)
        engines[f"ctranslate2 {quantization}"] = ours(target)
    try:
        export([run], folder / "huggingface", to="huggingface")
    except UserError as error:
        print(error)
    else:
        engines["huggingface"] = hugging_face(folder / "huggingface")
    return engines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    texts = read_file(options.source)[: options.lines]
    references = read_file(options.target)[: options.lines]
    rows = []
    with TemporaryDirectory() as folder:
        engines = exports(options.run, Path(folder))
        for beam in options.beams:
            seconds: dict[str, list[float]] = {name: [] for name in engines}
            found: dict[str, list[str]] = {}
            for translate in engines.values():
                translate(texts[:50], beam)
            for _ in range(options.rounds):
                for name, translate in engines.items():
                    start = time.perf_counter()
                    found[name] = translate(texts, beam)
                    seconds[name].append(time.perf_counter() - start)
            for name, lines in found.items():
                pairs = zip(lines, found["seq2seq"], strict=True)
                bleu = score(lines, [references])[0]
                rows.append(
                    {
                        "engine": name,
                        "beam": beam,
                        "different": sum(a.strip() != b.strip() for a, b in pairs),
                        "bleu": round(bleu.value, 2),
                        "lines_per_second": round(len(texts) / statistics.median(seconds[name]), 1),
                        "signature": bleu.signature,
                    }
                )
                if not options.json:
                    print("  ".join(f"{value}" for value in rows[-1].values()), flush=True)
    if options.json:
        print(json.dumps({"lines": len(texts), "rows": rows}))


if __name__ == "__main__":
    main()
