"""Measure the speed of generation with a cache and without one.

Usage: python scripts/bench_generate.py [--run RUN | --shape SHAPE] [--samples N] [--length N]
       [--rounds N] [--threads N] [--json]

Without a cache, a model reads the last tokens again for each new one, a whole
context, and keeps the last prediction alone. The generator's own window is shorter, from half a
context to a whole one, so that this is measured with such windows too. All write past a
full context, turn by turn; printed are the medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from seq2seq.config import ModelConfig
from seq2seq.data.packing import pack_grid
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Alphabet
from seq2seq.decoding.generation import TextGenerator
from seq2seq.decoding.sampling import Sampling, sample_tokens
from seq2seq.machine.devices import describe_device
from seq2seq.model.transformer import LanguageModel

SHAPES = {
    "cpu": ModelConfig(
        dim=192, ffn_dim=768, num_heads=3, encoder_layers=0, decoder_layers=6, context=256,
        norm="pre", positions="rotary", activation="gelu",
    ),
    "nanogpt": ModelConfig(
        dim=384, ffn_dim=1536, num_heads=6, encoder_layers=0, decoder_layers=6, context=256,
        norm="pre", positions="learned", activation="gelu",
    ),
}  # fmt: skip
"""The shapes of tiny_shakespeare_cpu.yaml and tiny_shakespeare.yaml."""


def with_cache(generator: TextGenerator, samples: int, length: int) -> float:
    """Return the tokens per second of the command `generate`, from a full context on."""
    context, vocabulary = generator.model.config.context, generator.tokenizer.target
    [prompt] = vocabulary.decode([[vocabulary.size // 2] * context])
    start = time.perf_counter()
    for _ in generator.generate(
        prompt, length=length, sampling=Sampling(), seed=1, samples=samples
    ):
        pass
    return samples * length / (time.perf_counter() - start)


@torch.inference_mode()
def uncached(model: LanguageModel, samples: int, widths: NDArray[np.int64]) -> float:
    """Return the tokens per second of reading this many tokens before each."""
    text = np.zeros((samples, model.config.context), dtype=np.int64)
    start = time.perf_counter()
    for step, width in enumerate(widths.tolist()):
        side = pack_grid(text[:, -width:]).to(model.device)
        hidden = model(side).unflatten(0, (samples, width))[:, -1]
        seeds = [(1, sample, step) for sample in range(samples)]
        tokens = sample_tokens(model.output(hidden), seeds).cpu().numpy()
        text = np.concatenate([text[:, 1:], tokens[:, None]], axis=1)
    return samples * len(widths) / (time.perf_counter() - start)


def main() -> None:
    """Parse the arguments, measure turn by turn, and print the medians."""
    parser = argparse.ArgumentParser(description="speed of writing with and without the cache")
    parser.add_argument("--run", type=Path, help="a trained model, instead of one at random")
    parser.add_argument("--shape", choices=[*SHAPES], default="nanogpt")
    parser.add_argument("--samples", type=int, default=1, help="texts at once")
    parser.add_argument("--length", type=int, default=256, help="tokens with the cache")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="(all cores)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.run:
        generator = TextGenerator.load(options.run)
    else:
        torch.manual_seed(1)
        alphabet = Alphabet([chr(code) for code in range(60, 125)])
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = LanguageModel(SHAPES[options.shape], alphabet.size).to(device).eval()
        generator = TextGenerator(model, Tokenizer(alphabet, alphabet))
    context, count = generator.model.config.context, max(8, options.length // 8)
    windows = {
        "a whole context": np.full(count, context),
        "the generator's windows": np.linspace(context // 2, context, count).astype(np.int64),
    }
    with_cache(generator, options.samples, 8)
    uncached(generator.model, options.samples, np.full(2, context))
    cached: list[float] = []
    plain: dict[str, list[float]] = {name: [] for name in windows}
    for _ in range(options.rounds):
        cached.append(with_cache(generator, options.samples, options.length))
        for name, widths in windows.items():
            plain[name].append(uncached(generator.model, options.samples, widths))
    hardware = describe_device(generator.model.device)
    result = {
        name: {
            "tokens_per_second": statistics.median(speeds),
            "ratios": sorted(one / other for one, other in zip(cached, speeds, strict=True)),
        }
        for name, speeds in plain.items()
    }
    if options.json:
        median = statistics.median(cached)
        print(json.dumps({"hardware": hardware, "cached": median, "uncached": result}))
        return
    print(hardware)
    print(f"with the cache {statistics.median(cached):,.0f} tokens/s")
    for name, found in result.items():
        ratios: Any = found["ratios"]
        print(f"reading {name} again {found['tokens_per_second']:,.0f} tokens/s: ratio "
              f"{statistics.median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})")  # fmt: skip


if __name__ == "__main__":
    main()
