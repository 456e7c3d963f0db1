"""Measure how fast a language model writes: with its cache, and by reading its context anew.

Usage: python scripts/bench_generate.py [--run RUN | --shape SHAPE] [--samples N] [--length N]
       [--rounds N] [--threads N] [--json]

Reading anew is what a model without a cache does: for each token it reads the last ones, a whole
context, and keeps the last prediction alone. Both write from a full context on, turn by turn;
printed are the medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from seq2seq.config import ModelConfig
from seq2seq.data.packing import pack_grid
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Alphabet
from seq2seq.decoding.sampling import Draws, Sampling
from seq2seq.decoding.writer import Writer
from seq2seq.model.language_model import LanguageModel

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
"""Those of tiny_shakespeare_cpu.yaml and tiny_shakespeare.yaml."""


def with_cache(writer: Writer, samples: int, length: int) -> float:
    """Return the tokens a second of the command `generate`, from a full context on."""
    context, vocabulary = writer.model.config.context, writer.tokenizer.target
    [prompt] = vocabulary.decode([[vocabulary.size // 2] * context])
    start = time.perf_counter()
    for _ in writer.write(prompt, length=length, sampling=Sampling(), seed=1, samples=samples):
        pass
    return samples * length / (time.perf_counter() - start)


@torch.inference_mode()
def anew(model: LanguageModel, samples: int, length: int) -> float:
    """Return the tokens a second of reading a whole context for each."""
    context, draws, sampling = model.config.context, Draws(1, samples), Sampling()
    window = np.zeros((samples, context), dtype=np.int64)
    start = time.perf_counter()
    for _ in range(length):
        side = pack_grid(window).to(model.device)
        hidden = model(side).unflatten(0, (samples, context))[:, -1]
        tokens = draws.draw(sampling.probabilities(model.output(hidden))).cpu().numpy()
        window = np.concatenate([window[:, 1:], tokens[:, None]], axis=1)
    return samples * length / (time.perf_counter() - start)


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
        writer = Writer.load(options.run)
    else:
        torch.manual_seed(1)
        alphabet = Alphabet([chr(code) for code in range(60, 125)])
        model = LanguageModel(SHAPES[options.shape], alphabet.size).eval()
        writer = Writer(model, Tokenizer(alphabet, alphabet))
    short = max(8, options.length // 8)
    with_cache(writer, options.samples, 8)
    anew(writer.model, options.samples, 2)
    pairs = [
        (with_cache(writer, options.samples, options.length),
         anew(writer.model, options.samples, short))
        for _ in range(options.rounds)
    ]  # fmt: skip
    cached, plain = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratios = [one / other for one, other in pairs]
    ratio = statistics.median(ratios)
    if options.json:
        print(json.dumps({"cached": cached, "anew": plain, "ratio": {"anew": ratio}}))
        return
    print(f"with the cache {cached:,.0f} tokens/s, reading anew {plain:,.0f}")
    print(f"ratio {ratio:.1f} (rounds: {', '.join(f'{each:.1f}' for each in ratios)})")


if __name__ == "__main__":
    main()
