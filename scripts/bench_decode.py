"""Compare the speed of translation with other engines: the same weights, lines, and beam.

    python scripts/bench_decode.py RUN --source FILE --target FILE --peer ctranslate2
        --peer transformers [--against CHECKOUT]
        [--beams 1 5] [--lines 1000] [--rounds 3] [--json]

Every engine runs in a process of its own and waits while another is measured. All read texts and
return texts. CTranslate2 is called as its documentation does, with the settings of this toolkit's
search. A peer is first tried with several batch sizes on a part of the lines; then all translate
all lines, in turn, with their best. Printed are medians over the rounds, the latency of one line of
five words, the peak memory of the process, BLEU, and how many lines differ from this toolkit's in
fp32. `ratio` is the smallest over all rows of a peer: int8 is compared with its int8. Where the
numbers of tokens of a line differ, so do the translations: a model that hardly ends a sentence runs
into the maximum lengths, 256 tokens in CTranslate2.

--against: the same of another checkout of this toolkit, named `base`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

Translate = Callable[[Sequence[str], int, int], list[str]]
"""(texts, beam, batch size) to translations; the size is in tokens, or as the engine counts."""
TRIED_LINES = 300
LATENCY_LINES = 30


def ours(folder: str, **options: Any) -> Translate:
    """Return this toolkit's translator."""
    from seq2seq.decoding.translator import Translator

    options |= {"penalty_form": "power"}
    translator = Translator.load(folder, **options)
    return lambda texts, beam, size: translator.translate(texts, beam=beam, batch_tokens=size)


def ctranslate2(folder: str, precision: str) -> Translate:
    """Return CTranslate2's translator, with a worker of one thread for each core."""
    import ctranslate2
    import sentencepiece

    from seq2seq.machine.threads import usable_cores

    tokenizer = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/tokenizer.model")
    threads = {"inter_threads": usable_cores(), "intra_threads": 1}
    compute_type = {"fp32": "float32"}.get(precision, precision)
    engine = ctranslate2.Translator(f"{folder}/ctranslate2", compute_type=compute_type, **threads)

    def translate(texts: Sequence[str], beam: int, size: int) -> list[str]:
        found = engine.translate_batch(
            tokenizer.encode(list(texts), out_type=str), max_batch_size=size, beam_size=beam,
            patience=1.5, length_penalty=1.0, disable_unk=True, min_decoding_length=0,
        )  # fmt: skip
        return tokenizer.decode([each.hypotheses[0] for each in found])

    return translate


def transformers(folder: str) -> Translate:
    """Return `generate` of transformers, on batches of similar lengths."""
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()

    @torch.inference_mode()
    def translate(texts: Sequence[str], beam: int, size: int) -> list[str]:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        found = [""] * len(texts)
        for start in range(0, len(texts), size):
            numbers = order[start : start + size]
            batch = tokenizer([texts[i] for i in numbers], return_tensors="pt", padding=True)
            outputs = model.generate(**batch, num_beams=beam)
            decoded = tokenizer.batch_decode(outputs, skip_special_tokens=True)
            for number, text in zip(numbers, decoded, strict=True):
                found[number] = text
        return found

    return translate


ENGINES: dict[str, Callable[..., Translate]] = {
    "seq2seq": ours, "base": ours, "ctranslate2": ctranslate2, "transformers": transformers,
}  # fmt: skip
SIZES = {
    "seq2seq": (16384,),
    "base": (4096, 16384),
    "ctranslate2": (16, 32, 64, 128),
    "transformers": (16, 32, 64, 128),
}
"""Source tokens times beam of a batch, or sentences."""


@dataclass(frozen=True)
class Contender:
    """An engine in one precision, the folder with its model, and its other arguments."""

    engine: str
    precision: str
    folder: str
    options: dict[str, Any] = field(default_factory=dict)
    checkout: str = ""


def serve(connection: Any, contender: Contender) -> None:
    """Run an engine: translate what comes, and return the seconds and the translations."""
    if contender.checkout:
        sys.path.insert(0, contender.checkout)
    translate = ENGINES[contender.engine](contender.folder, **contender.options)
    connection.send("ready")
    while (job := connection.recv()) is not None:
        texts, beam, size = job
        start = time.perf_counter()
        found = translate(texts, beam, size)
        connection.send((time.perf_counter() - start, found))


class Worker:
    """The process of one contender."""

    def __init__(self, contender: Contender) -> None:
        context = multiprocessing.get_context("spawn")
        self.contender = contender
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, contender), daemon=False)
        self.process.start()
        self.connection.recv()

    def __call__(self, texts: Sequence[str], beam: int, size: int) -> tuple[float, list[str]]:
        self.connection.send((list(texts), beam, size))
        seconds, found = self.connection.recv()
        return seconds, found

    def memory(self, texts: Sequence[str], beam: int, size: int) -> float:
        """Return the peak memory of a call, in MiB; what processes share counts once."""
        self.connection.send((list(texts), beam, size))
        process, peak = psutil.Process(self.process.pid), 0
        while not self.connection.poll(0.05):
            with contextlib.suppress(psutil.Error):
                every = [process, *process.children(recursive=True)]
                peak = max(peak, sum(each.memory_full_info().pss for each in every))
        self.connection.recv()
        return peak / 2**20

    def close(self) -> None:
        self.connection.send(None)
        self.process.join()


def contenders(options: argparse.Namespace, folder: Path) -> list[Contender]:
    """Return what is to be compared; exports the model for the peers."""
    from seq2seq.errors import UserError
    from seq2seq.export.export import export
    from seq2seq.model.converted import converted
    from seq2seq.model.saved import find_model

    run, model = str(options.run), find_model(options.run)
    found = [Contender("seq2seq", precision, run, {"precision": precision})
             for precision in options.precisions]  # fmt: skip
    if options.against:  # which may have fp32 alone
        found.append(Contender("base", "fp32", run, checkout=str(options.against)))
    if "ctranslate2" in options.peer:
        with converted(model):  # writes the folder
            found += [Contender("ctranslate2", precision, str(model), {"precision": precision})
                      for precision in options.precisions]  # fmt: skip
    if "transformers" in options.peer:
        try:
            export([options.run], folder / "huggingface", to="huggingface")
        except UserError as error:  # rotary positions, for example
            print(error, file=sys.stderr)
        else:
            found.append(Contender("transformers", "fp32", str(folder / "huggingface")))
    return found


def measure(
    workers: Sequence[Worker], texts: list[str], beam: int, rounds: int
) -> dict[str, dict[str, Any]]:
    """Return what each contender does with this beam, at its best batch size."""
    best: dict[str, tuple[float, int, Worker]] = {}
    for worker in workers:
        contender = worker.contender
        worker(texts[:50], beam, SIZES[contender.engine][0])
        tried = texts[:: max(1, len(texts) // TRIED_LINES)]
        for size in SIZES[contender.engine]:
            seconds, *_ = worker(tried, beam, size)
            name = f"{contender.engine} {contender.precision}"
            best[name] = min(best.get(name, (seconds, size, worker)), (seconds, size, worker),
                             key=lambda each: each[0])  # fmt: skip
    short = [text for text in texts if len(text.split()) == 5][:LATENCY_LINES]
    seconds_of: dict[str, list[float]] = {name: [] for name in best}
    latency_of: dict[str, list[float]] = {name: [] for name in best}
    found: dict[str, list[str]] = {}
    for _ in range(rounds):
        for name, (_, size, worker) in best.items():
            seconds, found[name] = worker(texts, beam, size)
            seconds_of[name].append(seconds)
    for text in short:
        for name, (_, size, worker) in best.items():
            latency_of[name].append(worker([text], beam, size)[0])
    return {
        name: {
            "lines_per_second": round(len(texts) / statistics.median(seconds_of[name]), 1),
            "latency_ms": round(1e3 * statistics.median(latency_of[name]), 1) if short else None,
            "memory_mib": round(worker.memory(texts, beam, size)),
            "batch": size,
            "found": found[name],
        }
        for name, (_, size, worker) in best.items()
    }


def ratios(rows: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return the speed of each precision of this toolkit, relative to each peer."""
    speeds = {name: row["lines_per_second"] for name, row in rows.items()}
    result = {}
    for name in (each for each in speeds if each.startswith("seq2seq")):
        precision = name.split()[1]
        for peer in ("ctranslate2", "transformers", "base"):
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
    parser.add_argument(
        "--peer", action="append", default=[], choices=["ctranslate2", "transformers"]
    )
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    parser.add_argument("--precisions", nargs="+", default=["fp32", "int8"])
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    from seq2seq.data.lines import read_file
    from seq2seq.evaluation.metrics import score
    from seq2seq.model.directory import load_model
    from seq2seq.model.saved import find_model

    tokenizer = load_model(find_model(options.run, None)).tokenizer
    texts = list(read_file(options.source))[: options.lines]
    references = list(read_file(options.target))[: options.lines]
    smallest: dict[str, float] = {}
    result: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:
        workers = [Worker(each) for each in contenders(options, Path(folder))]
        for beam in options.beams:
            rows = measure(workers, texts, beam, options.rounds)
            for name, row in rows.items():
                found = row["found"]
                tokens = sum(map(len, tokenizer.target.encode(found)))
                row["tokens_per_line"] = round(tokens / len(found), 1)
                row["bleu"] = round(score(found, [references])[0].value, 2)
                if ours := rows.get("seq2seq fp32"):
                    pairs = zip(found, ours["found"], strict=True)
                    row["different"] = sum(own.strip() != other.strip() for own, other in pairs)
                facts = {key: value for key, value in row.items() if key != "found"}
                result.append({"beam": beam, "engine": name, **facts})
                if not options.json:
                    print(*(f"{value}" for value in result[-1].values()), sep="\t", flush=True)
            by_name = ratios(rows)
            if not options.json:
                print(f"beam {beam}:", by_name, flush=True)
            for name, ratio in by_name.items():
                peer = name.split()[0]
                smallest[peer] = min(smallest.get(peer, ratio), ratio)
        for worker in workers:
            worker.close()
    if options.json:
        print(json.dumps({"ratio": smallest, "lines": len(texts), "rows": result}))
    else:
        print("ratio:", smallest)


if __name__ == "__main__":
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    main()
