"""Measure translation speed against CTranslate2, with the same weights, lines and beam.

    python scripts/bench_decode.py RUN --source FILE --target FILE [--peer ctranslate2]
        [--against CHECKOUT] [--beams 1 5] [--lines 1000] [--rounds 3] [--json]

Each engine runs in its own process; one process works at a time. Input and output are text.
CTranslate2 is called as in its documentation, with the search settings of this toolkit. Its batch
size is tuned first, on a sample of the lines. The engines then translate all lines in turn, for
several rounds. The script prints median speed, latency of lines of five words, peak memory, BLEU,
and the number of translations that differ from this toolkit's at the first precision. `ratio` is
the lowest relative speed over all rows of a peer, fp32 against fp32 and int8 against int8. Tokens
per line show whether the engines do comparable work: a poor model may fail to end sentences, and
then runs into the maximum length (256 tokens in CTranslate2).

--against: also measure another checkout of this toolkit, named `base`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

Translate = Callable[[Sequence[str], int, int], list[str]]
"""Function of texts, beam and batch size (see `SIZES`) that returns translations."""
TUNING_LINES = 300
LATENCY_LINES = 30


def ours(folder: str, **options: Any) -> Translate:
    """Return this toolkit's translator."""
    from seq2seq.decoding.translator import Translator

    options |= {"penalty_form": "power"}
    translator = Translator.load(folder, **options)
    return lambda texts, beam, size: translator.translate(texts, beam=beam, batch_tokens=size)


def ctranslate2(folder: str, precision: str) -> Translate:
    """Return CTranslate2's translator, with one single-threaded worker per core."""
    import ctranslate2
    import sentencepiece

    from seq2seq.machine.threads import usable_cores

    tokenizer = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/tokenizer.model")
    threads = {"inter_threads": usable_cores(), "intra_threads": 1}
    compute_type = {"fp32": "float32"}.get(precision, precision)
    engine = ctranslate2.Translator(f"{folder}/ctranslate2", compute_type=compute_type, **threads)

    def translate(texts: Sequence[str], beam: int, size: int) -> list[str]:
        results = engine.translate_batch(
            tokenizer.encode(list(texts), out_type=str),
            max_batch_size=size,
            beam_size=beam,
            patience=1.5,
            length_penalty=1.0,
            disable_unk=True,
            min_decoding_length=0,
        )
        return tokenizer.decode([result.hypotheses[0] for result in results])

    return translate


ENGINES: dict[str, Callable[..., Translate]] = {
    "seq2seq": ours,
    "base": ours,
    "ctranslate2": ctranslate2,
}
SIZES = {"seq2seq": (16384,), "base": (16384,), "ctranslate2": (16, 32, 64, 128)}
"""Batch sizes to try: source tokens times beam; sentences for CTranslate2."""


@dataclass(frozen=True)
class Contender:
    """Engine at one precision, with its model folder and other arguments."""

    engine: str
    precision: str
    folder: str
    options: dict[str, Any] = field(default_factory=dict)
    checkout: str = ""


def serve(connection: Any, contender: Contender) -> None:
    """Run an engine: receive jobs, and send the seconds and the translations."""
    if contender.checkout:
        sys.path.insert(0, contender.checkout)
    translate = ENGINES[contender.engine](contender.folder, **contender.options)
    connection.send("ready")
    while (job := connection.recv()) is not None:
        texts, beam, size = job
        start = time.perf_counter()
        translations = translate(texts, beam, size)
        connection.send((time.perf_counter() - start, translations))


class Worker:
    """Process that runs one contender."""

    def __init__(self, contender: Contender) -> None:
        context = multiprocessing.get_context("spawn")
        self.contender = contender
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, contender), daemon=False)
        self.process.start()
        self.connection.recv()

    def __call__(self, texts: Sequence[str], beam: int, size: int) -> tuple[float, list[str]]:
        self.connection.send((list(texts), beam, size))
        seconds, translations = self.connection.recv()
        return seconds, translations

    def memory(self, texts: Sequence[str], beam: int, size: int) -> float:
        """Return the peak memory of a call, in MiB, with shared memory counted once."""
        self.connection.send((list(texts), beam, size))
        process, peak = psutil.Process(self.process.pid), 0
        while not self.connection.poll(0.05):
            with contextlib.suppress(psutil.Error):
                tree = [process, *process.children(recursive=True)]
                peak = max(peak, sum(member.memory_full_info().pss for member in tree))
        self.connection.recv()
        return peak / 2**20

    def close(self) -> None:
        self.connection.send(None)
        self.process.join()


def contenders(options: argparse.Namespace) -> list[Contender]:
    """Return the engines to compare. Converts the model for CTranslate2."""
    from seq2seq.formats.ctranslate2 import converted
    from seq2seq.formats.model_directory import find_model

    run, model = str(options.run), find_model(options.run)
    engines = [
        Contender("seq2seq", precision, run, {"precision": precision})
        for precision in options.precisions
    ]
    if options.against:  # old versions support fp32 only
        engines.append(Contender("base", "fp32", run, checkout=str(options.against)))
    if options.peer:
        with converted(model):  # writes the folder
            engines += [
                Contender("ctranslate2", precision, str(model), {"precision": precision})
                for precision in options.precisions
            ]
    return engines


def measure(
    workers: Sequence[Worker], texts: list[str], beam: int, rounds: int
) -> dict[str, dict[str, Any]]:
    """Return the measurements of each contender with one beam, at its best batch size."""
    sample = texts[:: max(1, len(texts) // TUNING_LINES)]
    short = [text for text in texts if len(text.split()) == 5][:LATENCY_LINES]
    best: list[tuple[Worker, int]] = []
    for worker in workers:
        sizes = SIZES[worker.contender.engine]
        worker(sample, beam, sizes[0])  # warm-up
        seconds = {size: worker(sample, beam, size)[0] for size in sizes if len(sizes) > 1}
        best.append((worker, min(seconds, key=seconds.__getitem__, default=sizes[0])))
    runs = [[worker(texts, beam, size) for worker, size in best] for _ in range(rounds)]
    latencies = [[worker([text], beam, size)[0] for worker, size in best] for text in short]
    result = {}
    for i, (worker, size) in enumerate(best):
        total = statistics.median(run[i][0] for run in runs)
        latency = statistics.median(row[i] for row in latencies) if latencies else None
        result[f"{worker.contender.engine} {worker.contender.precision}"] = {
            "lines_per_second": round(len(texts) / total, 1),
            "latency_ms": latency and round(1e3 * latency, 1),
            "memory_mib": round(worker.memory(texts, beam, size)),
            "batch": size,
            "translations": runs[-1][i][1],
        }
    return result


def ratios(rows: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return the speed of this toolkit relative to each peer, by peer and precision."""
    speeds = {name: row["lines_per_second"] for name, row in rows.items()}
    result = {}
    for name in (engine for engine in speeds if engine.startswith("seq2seq")):
        precision = name.split()[1]
        for peer in ("ctranslate2", "base"):
            other = f"{peer} {precision if peer == 'ctranslate2' else 'fp32'}"
            if other in speeds:
                result[f"{peer} {precision}"] = round(speeds[name] / speeds[other], 3)
    return result


def main() -> None:
    """Parse the arguments, measure, and print a table or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--peer", choices=["ctranslate2"])
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    parser.add_argument("--precisions", nargs="+", default=["fp32", "int8"])
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    from seq2seq.data.lines import read_file
    from seq2seq.evaluation.metrics import score
    from seq2seq.formats.model_directory import find_model
    from seq2seq.formats.weights import load_model

    tokenizer = load_model(find_model(options.run, None)).tokenizer
    texts = list(read_file(options.source))[: options.lines]
    references = list(read_file(options.target))[: options.lines]
    lowest: dict[str, float] = {}
    result: list[dict[str, Any]] = []
    workers = [Worker(contender) for contender in contenders(options)]
    for beam in options.beams:
        rows = measure(workers, texts, beam, options.rounds)
        first = next(iter(rows.values()))["translations"]
        for name, row in rows.items():
            lines = row.pop("translations")
            tokens = sum(map(len, tokenizer.target.encode(lines)))
            row["tokens_per_line"] = round(tokens / len(lines), 1)
            row["bleu"] = round(score(lines, [references])[0].value, 2)
            pairs = zip(lines, first, strict=True)
            row["different"] = sum(a.strip() != b.strip() for a, b in pairs)
            result.append({"beam": beam, "engine": name, **row})
            if not options.json:
                print(*result[-1].values(), sep="\t", flush=True)
        by_name = ratios(rows)
        if not options.json:
            print(f"beam {beam}:", by_name, flush=True)
        for name, ratio in by_name.items():
            peer = name.split()[0]
            lowest[peer] = min(lowest.get(peer, ratio), ratio)
    for worker in workers:
        worker.close()
    if options.json:
        print(json.dumps({"ratio": lowest, "lines": len(texts), "rows": result}))
    else:
        print("ratio:", lowest)


if __name__ == "__main__":
    main()
