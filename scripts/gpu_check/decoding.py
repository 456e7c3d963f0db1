"""Decoding speed of the base model with random weights, with all translations at maximum length."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
import torch
from gpu_check.steps import ROOT, SEQ2SEQ, Result, device
from gpu_check.training import BASE, TINY, synchronize

from seq2seq.config import Config, DecodingConfig, PairsConfig, TokenizerConfig
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import train_vocabulary
from seq2seq.decoding.engine import Source
from seq2seq.decoding.torch_engine import EnsembleDecoder, TorchEngine
from seq2seq.formats.weights import save_model, snapshot
from seq2seq.machine.precision import Precision
from seq2seq.model.transformer import Transformer, for_inference

T = TypeVar("T")

LINES, BEAM, LENGTH = 1_000, 4, 30
"""Number of sentences, beam width, and number of tokens of each source and translation."""
PIECES = 8_000


def inputs(arguments: argparse.Namespace) -> tuple[Transformer, Tokenizer, Config, list[list[int]]]:
    """Return model, tokenizer, recipe and source ids."""
    shape = TINY if arguments.rehearse else BASE
    random = np.random.default_rng(1)
    letters = [*"abcdefghijklmnopqrstuvwxyz"]
    words = ["".join(random.choice(letters, size)) for size in random.integers(2, 8, 40_000)]
    texts = [" ".join(words[i : i + 20]) for i in range(0, len(words), 20)]
    pieces = 400 if arguments.rehearse else PIECES
    vocabulary = train_vocabulary(texts, TokenizerConfig(vocab_size=pieces), [])
    torch.manual_seed(1)
    model = Transformer(shape, vocabulary.size).to(device()).eval()
    lines = 8 if arguments.rehearse else LINES
    sources = random.integers(260, vocabulary.size, (lines, LENGTH - 1)).tolist()
    data = PairsConfig(source="en", target="de")
    config = Config(data=data, model=replace(shape, norm="post"))
    return model, Tokenizer(vocabulary, vocabulary), config, sources


def search(arguments: argparse.Namespace) -> Iterator[Result]:
    """Measure greedy search and beam search, and count host synchronisations."""
    model, tokenizer, config, sources = inputs(arguments)
    precision: Precision = "fp32" if device().type == "cpu" else "fp16"
    engine = TorchEngine([for_inference(model, precision)], tokenizer, config.num_positions)
    queries = [Source(tokenizer.source.pieces(source)) for source in sources]
    for beam in (1, BEAM):
        options = DecodingConfig(beam=beam, max_extra=0, batch_tokens=16_384)
        run = partial(engine.search, queries, options)
        seconds, results = timed(run)
        waits, steps = host_waits(run)
        tokens = sum(len(best.pieces) + 1 for [best] in results)
        result = speed(beam, len(sources), tokens, seconds)
        yield result | {"precision": precision, "host_waits_per_step": waits / max(1, steps)}


def speed(beam: int, lines: int, tokens: int, seconds: float) -> Result:
    """Return the speed of a search in lines and tokens per second."""
    return {
        "beam": beam,
        "lines_per_second": round(lines / seconds, 1),
        "tokens_per_second": round(tokens / seconds),
    }


def host_waits(run: Callable[[], object]) -> tuple[int, int]:
    """Return the number of times that the host waits for the GPU, and of search steps."""
    steps = 0
    step = EnsembleDecoder.step

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal steps
        steps += 1
        return step(*arguments, **options)

    with (
        patch.object(EnsembleDecoder, "step", counted),
        warnings.catch_warnings(record=True) as seen,
    ):
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("warn")
        try:
            run()
        finally:
            if torch.cuda.is_available():
                torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in seen), steps


def ctranslate2(arguments: argparse.Namespace) -> Iterator[Result]:
    """Measure beam search in CTranslate2 with the same weights."""
    if not importlib.util.find_spec("ctranslate2"):
        yield {"left_out": "ctranslate2 is not installed"}
        return
    model, tokenizer, config, sources = inputs(arguments)
    with tempfile.TemporaryDirectory() as folder:
        (directory := Path(folder) / "model").mkdir()
        save_model(directory, snapshot(model), tokenizer, config)
        to = ["--to", "ctranslate2", "-o", f"{folder}/exported"]
        export = [*SEQ2SEQ, "export", str(directory), *to]
        subprocess.run(export, cwd=ROOT, check=True, stdout=sys.stderr)
        import ctranslate2 as engine

        gpu = device().type
        translator = engine.Translator(
            f"{folder}/exported", device=gpu, compute_type="float32" if gpu == "cpu" else "float16"
        )
    texts = [[*tokenizer.source.pieces(source), "</s>"] for source in sources]
    options = {"max_batch_size": 16_384, "batch_type": "tokens", "beam_size": BEAM}
    options |= {"max_decoding_length": LENGTH, "min_decoding_length": LENGTH}
    seconds, results = timed(lambda: translator.translate_batch(texts, **options))
    tokens = sum(len(result.hypotheses[0]) for result in results)
    yield speed(BEAM, len(sources), tokens, seconds)


def timed(run: Callable[[], T]) -> tuple[float, T]:
    """Call a function twice; return the seconds and the result of the second call."""
    run()
    synchronize(device())
    start = time.perf_counter()
    result = run()
    synchronize(device())
    return time.perf_counter() - start, result
