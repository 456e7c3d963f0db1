"""Measure `seq2seq serve`: many clients at once, latency, and memory.

Usage: python scripts/bench_serve.py RUN SOURCES [--clients 200] [--seconds 60]
       [--memory-seconds 0] [--peer URL]

Every client sends 1 to 5 lines of the file SOURCES, again and again. Each answer is compared with
the translator's. The server is compared with `translate` on the same lines (in blocks, as a file),
and with one CTranslate2 call for each line. All times are of this machine, with the clients on it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil

from seq2seq.decoding.translator import Translator

MAX_LINES = 1_000


async def load(
    url: str,
    lines: list[str],
    expected: dict[str, str],
    clients: int,
    seconds: float,
    most: int = 5,
) -> dict[str, Any]:
    """Send requests of 1 to `most` lines; return numbers of lines, errors, and latencies."""
    end = time.monotonic() + seconds
    address = urlsplit(url).hostname, urlsplit(url).port
    latencies: list[float] = []
    counts = {"lines": 0, "wrong": 0, "lost": 0}

    async def client(seed: int) -> None:
        rng = random.Random(seed)
        connection = None
        while time.monotonic() < end:
            texts = rng.choices(lines, k=rng.randint(1, most))
            start = time.monotonic()
            try:
                connection = connection or await asyncio.open_connection(*address)
                answer = await post(connection, {"q": texts, **PAIR})
                translated = answer["translatedText"]
            except (OSError, EOFError, KeyError, ValueError):
                counts["lost"] += 1
                connection = None
                continue
            latencies.append(time.monotonic() - start)
            counts["lines"] += len(texts)
            counts["wrong"] += translated != [expected[text] for text in texts]

    start = time.monotonic()
    await asyncio.gather(*map(client, range(clients)))
    took = time.monotonic() - start
    return {**counts, "lines_per_second": counts["lines"] / took, **quantiles(latencies)}


async def post(connection: Any, fields: dict[str, Any]) -> Any:
    """Send a request and return its answer. A client library would take half of the processor."""
    reader, writer = connection
    body = json.dumps(fields).encode()
    head = "POST /translate HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    headers = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(headers.partition("content-length:")[2].split()[0])
    return json.loads(await reader.readexactly(length))


def quantiles(latencies: list[float]) -> dict[str, float]:
    """Return p50 and p99 in milliseconds."""
    cuts = statistics.quantiles(latencies, n=100) if len(latencies) > 1 else [0.0] * 99
    return {"p50_ms": 1000 * cuts[49], "p99_ms": 1000 * cuts[98]}


def offline(translator: Translator, lines: list[str]) -> tuple[float, float, dict[str, float]]:
    """Return lines per second of one call for all lines, and of a call per line with latencies."""
    start = time.monotonic()
    translator.translate(lines, paragraphs=True)
    together = len(lines) / (time.monotonic() - start)
    latencies = []
    engine = translator.engines.ctranslate2
    pieces = translator.tokenizer.translation_vocabularies[0].encode_pieces(lines[:200])
    decoding = translator.decoding
    for row in pieces:
        start = time.monotonic()
        engine._translator.translate_batch(
            [row],
            beam_size=decoding.beam,
            patience=decoding.patience,
            max_decoding_length=len(row) + decoding.max_extra,
        )
        latencies.append(time.monotonic() - start)
    return together, len(latencies) / sum(latencies), quantiles(latencies)


def main() -> None:
    """Run all measurements and print them as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("sources", type=Path)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--memory-seconds", type=float, default=0)
    parser.add_argument("--port", type=int, default=5099)
    parser.add_argument("--peer", help="address of another server with the same model")
    options = parser.parse_args()
    lines = options.sources.read_text("utf-8").splitlines()[:MAX_LINES]
    translator = Translator.load(options.run)
    data = translator.engines.configs[0].pairs
    PAIR.update(source=data.source, target=data.target)
    expected = dict(zip(lines, translator.translate(lines, paragraphs=True), strict=True))
    together, single, in_process = offline(translator, lines)
    print(json.dumps({"translate_lines_per_second": together}))
    print(json.dumps({"ctranslate2_by_line_per_second": single, **in_process}), flush=True)
    url = f"http://127.0.0.1:{options.port}"
    command = [sys.executable, "-m", "seq2seq", "serve", options.run, "--port", str(options.port)]
    start = time.monotonic()
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        while True:
            try:
                httpx.get(f"{url}/health")
                break
            except httpx.HTTPError:
                time.sleep(0.01)
        print(json.dumps({"ready_seconds": time.monotonic() - start}), flush=True)
        process = psutil.Process(server.pid)

        def run(clients: int, seconds: float, most: int = 5) -> dict[str, Any]:
            return asyncio.run(load(url, lines, expected, clients, seconds, most))

        for name, clients, seconds, most in (
            ("idle, a line", 1, 5, 1),
            ("many", options.clients, options.seconds, 5),
            ("two clients, a line", 2, 5, 1),
        ):
            found = {"load": name, "clients": clients, **run(clients, seconds, most)}
            print(json.dumps({**found, "rss_mib": process.memory_info().rss / 2**20}), flush=True)
        minutes = int(options.memory_seconds // 60)
        for minute in range(1, minutes + 1):
            run(options.clients, 60)
            rss = process.memory_info().rss / 2**20
            print(json.dumps({"minute": minute, "rss_mib": rss}), flush=True)
        server.terminate()
    if options.peer:  # answers are not compared: another search may find others
        for name, clients, seconds, most in (
            ("idle, a line", 1, 5, 1),
            ("many", options.clients, options.seconds, 5),
        ):
            found = asyncio.run(load(options.peer, lines, expected, clients, seconds, most))
            print(json.dumps({"peer": name, "clients": clients, **found}), flush=True)


PAIR: dict[str, str] = {}
"""Languages of the model."""

if __name__ == "__main__":
    main()
