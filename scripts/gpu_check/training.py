"""Training speed on sentences of natural lengths, with TOKENS target tokens per update."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from accelerate import Accelerator
from gpu_check.steps import Result, device

from seq2seq.config import ModelConfig, TrainingConfig
from seq2seq.data.batching import Batch, micro_batches, pack_pairs
from seq2seq.machine.precision import DTYPES, matmul_flops, resolve_precision
from seq2seq.model.packed_attention import find_kernel
from seq2seq.model.transformer import Transformer
from seq2seq.training.update import Updater

BASE = ModelConfig()
BIG = ModelConfig(dim=1024, ffn_dim=4096, num_heads=16, dropout=0.3)
TINY = ModelConfig(dim=16, ffn_dim=32, num_heads=2, encoder_layers=1, decoder_layers=1)
TOKENS, VOCABULARY, UPDATES = 25_000, 37_000, 30
"""Target tokens per update, vocabulary size, and number of measured updates."""
DISTINCT = 4
"""Number of different batches, used in turn. The first pass over them is a warm-up."""


def train(arguments: argparse.Namespace, shape: ModelConfig) -> Iterator[Result]:
    """Train a model; yield its speed, MFU and peak memory."""
    tokens, vocabulary, updates = TOKENS, VOCABULARY, UPDATES
    if arguments.rehearse:
        tokens, vocabulary, updates = 200, 300, 2
        shape = replace(TINY, attention_dropout=shape.attention_dropout)
    gpu = device()
    precision = resolve_precision("auto", gpu)
    torch.manual_seed(1)
    model = Transformer(shape, vocabulary)
    updater = Updater(model, TrainingConfig(), Accelerator(mixed_precision="no"), precision)
    batches = [random_update(tokens, vocabulary, seed) for seed in range(DISTINCT)]
    if gpu.type == "cuda":  # as in a training run
        batches = [[batch.map(torch.Tensor.pin_memory) for batch in update] for update in batches]
    counts = [sum(batch.num_labels for batch in update) for update in batches]
    for i in range(DISTINCT + updates):
        if i == DISTINCT:
            synchronize(gpu)
            start = time.perf_counter()
        updater.update(batches[i % DISTINCT], counts[i % DISTINCT], 1e-4)
    synchronize(gpu)
    speed = sum(counts[i % DISTINCT] for i in range(updates)) / (time.perf_counter() - start)
    result: Result = {"tokens_per_second": round(speed), "precision": precision}
    if gpu.type == "cuda":
        result["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    # 6 operations per weight and token, forward and backward (Kaplan et al. 2020, section 2.1).
    flops = 6 * speed * sum(weight.numel() for weight in model.parameters() if weight.dim() == 2)
    kernel = find_kernel(gpu, DTYPES[precision], shape.dim // shape.num_heads)
    yield result | {
        "mfu": round(flops / matmul_flops(gpu, DTYPES[precision], 8192), 3),
        "flash_attention": kernel is not None and not shape.attention_dropout,
        "micro_batches": len(batches[0]),
    }


base, big = partial(train, shape=BASE), partial(train, shape=BIG)
"""Train the models of Vaswani et al. (2017)."""
attention_dropout = partial(train, shape=replace(BASE, attention_dropout=0.1))
"""Train the base model with attention dropout, and so without flash attention."""


def random_update(tokens: int, vocabulary: int, seed: int) -> list[Batch]:
    """Return micro-batches of random sentences of about 25 tokens."""
    random = np.random.default_rng(seed)
    lens = np.clip(random.lognormal(3.1, 0.5, tokens).astype(np.int32), 2, 120)
    lens = lens[: int(np.searchsorted(lens.cumsum(), tokens))]
    rows = [random.integers(4, vocabulary, size).astype(np.int32) for size in lens]
    batches = micro_batches(lens, lens, max_tokens=tokens)
    parts = [[rows[i] for i in indices] for indices in batches]
    return [pack_pairs(part, part, part) for part in parts]


def synchronize(gpu: torch.device) -> None:
    """Wait until the GPU is idle."""
    if gpu.type != "cpu":
        torch.accelerator.synchronize()
