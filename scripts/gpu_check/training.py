"""Speed of training: this toolkit, and a plain loop with torch's nn.Transformer.

Both train on the same sentences, of natural lengths, for TOKENS target tokens an update: packed
here, and there in padded batches of sentences of about one length, as fairseq makes them.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from bench_memory import SHAPES, make_update, random_rows
from gpu_check.steps import Result, device
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from seq2seq.config import ModelConfig, TrainingConfig
from seq2seq.machine.precision import DTYPES, Precision, peak_matmul_flops, resolve_precision
from seq2seq.model.attention import needs_rows
from seq2seq.model.transformer import Transformer
from seq2seq.training.run import compile_layers
from seq2seq.training.update import Updater

TOKENS, VOCABULARY, UPDATES = 25_000, 37_000, 30
"""Target tokens of an update; size of the vocabulary; measured updates."""
DISTINCT = 4
"""Number of updates of different sentences, trained on in turn."""
WARM_UP = 4
"""Updates before the measured ones: each of the different ones once."""
TINY = ModelConfig(dim=16, ffn_dim=32, num_heads=2, encoder_layers=1, decoder_layers=1)
PAD = 0


def sizes(arguments: argparse.Namespace) -> tuple[int, int, int]:
    """Return target tokens of an update, vocabulary and measured updates."""
    return (200, 300, 2) if arguments.rehearse else (TOKENS, VOCABULARY, UPDATES)


def base(arguments: argparse.Namespace) -> Iterator[Result]:
    """Train the paper's base model."""
    yield own(arguments, SHAPES["base"])


def attention_dropout(arguments: argparse.Namespace) -> Iterator[Result]:
    """The same with dropout of attention weights, for which flash attention has no kernel."""
    yield own(arguments, replace(SHAPES["base"], attention_dropout=0.1))


def compiled(arguments: argparse.Namespace) -> Iterator[Result]:
    """The same with torch.compile."""
    yield own(arguments, SHAPES["base"], compiled=True)


def big(arguments: argparse.Namespace) -> Iterator[Result]:
    """Train the paper's big model."""
    yield own(arguments, SHAPES["big"])


def own(arguments: argparse.Namespace, shape: ModelConfig, *, compiled: bool = False) -> Result:
    """Train a model with this toolkit."""
    tokens, vocabulary, updates = sizes(arguments)
    gpu = device()
    precision = resolve_precision("auto", gpu)
    if arguments.rehearse:
        shape = replace(TINY, attention_dropout=shape.attention_dropout)
    torch.manual_seed(1)
    model = Transformer(shape, vocabulary)
    if compiled:
        compile_layers(model, gpu)
    updater = Updater(model, TrainingConfig(), Accelerator(mixed_precision="no"), precision)
    width = shape.dim // shape.num_heads
    rows = needs_rows(gpu, DTYPES[precision], width, shape.attention_dropout)
    batches = [
        make_update(random_rows(tokens, vocabulary, seed), tokens, by_length=rows)
        for seed in range(DISTINCT)
    ]
    if gpu.type == "cuda":  # as in a training run
        batches = [[batch.pin() for batch in update] for update in batches]
    counts = [sum(batch.num_labels for batch in update) for update in batches]

    def update(i: int) -> None:
        updater.update(batches[i % DISTINCT], counts[i % DISTINCT], 1e-4)

    speed = measure(update, counts, updates, gpu)
    return described(speed, gpu, precision, model.training_flops(1, 1)) | {
        "flash_attention": not rows,
        "micro_batches": len(batches[0]),
    }


def plain(arguments: argparse.Namespace) -> Iterator[Result]:
    """Train nn.Transformer in a plain loop."""
    tokens, vocabulary, updates = sizes(arguments)
    gpu = device()
    precision = resolve_precision("auto", gpu)
    shape = TINY if arguments.rehearse else SHAPES["base"]
    torch.manual_seed(1)
    model = PlainTransformer(shape, vocabulary).to(gpu).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)
    sentences = [row for seed in range(DISTINCT) for row in random_rows(tokens, vocabulary, seed)]
    batches = padded_batches(sentences, DISTINCT)
    counts = [int((batch != PAD).sum()) for batch in batches]
    if gpu.type == "cuda":
        batches = [batch.pin_memory() for batch in batches]

    def update(i: int) -> None:
        batch = batches[i % DISTINCT].to(gpu, non_blocking=True)
        with torch.autocast(gpu.type, DTYPES[precision], enabled=precision != "fp32"):
            logits = model(batch, batch)
            loss = F.cross_entropy(
                logits.flatten(0, 1).float(),
                batch.flatten(),
                ignore_index=PAD,
                label_smoothing=0.1,
            )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    speed = measure(update, counts, updates, gpu)
    with torch.device("meta"):
        flops = Transformer(shape, vocabulary).training_flops(1, 1)
    padding = 1 - sum(counts) / sum(batch.numel() for batch in batches)
    yield described(speed, gpu, precision, flops) | {"padding": round(padding, 3)}


def padded_batches(rows: Sequence[NDArray[np.int32]], count: int) -> list[Tensor]:
    """Return batches of about as many tokens, each of sentences of like length: (B, T)."""
    ordered = sorted(rows, key=len)
    ends = np.cumsum([len(row) for row in ordered])
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, count) / count)
    tensors = [torch.from_numpy(row).long() for row in ordered]
    bounds = pairwise([0, *cuts.tolist(), len(tensors)])
    return [
        pad_sequence(tensors[start:end], batch_first=True, padding_value=PAD)
        for start, end in bounds
    ]


class PlainTransformer(nn.Module):
    """torch's nn.Transformer with one embedding for both sides and the output."""

    def __init__(self, shape: ModelConfig, vocabulary: int) -> None:
        super().__init__()
        self.scale = math.sqrt(shape.dim)
        self.embedding = nn.Embedding(vocabulary, shape.dim, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=shape.dim**-0.5)
        self.positions = nn.Embedding(1024, shape.dim)
        self.dropout = nn.Dropout(shape.dropout)
        self.transformer = nn.Transformer(
            shape.dim,
            shape.num_heads,
            shape.encoder_layers,
            shape.decoder_layers,
            shape.ffn_dim,
            shape.dropout,
            batch_first=True,
        )

    def embed(self, ids: Tensor) -> Tensor:
        """Embed (B, T) as (B, T, D)."""
        positions = self.positions(torch.arange(ids.shape[1], device=ids.device))
        return self.dropout(self.embedding(ids) * self.scale + positions)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits, (B, T, V)."""
        size = target.shape[1]
        future = torch.ones(size, size, dtype=torch.bool, device=target.device).triu(1)
        hidden = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=future,
            tgt_is_causal=True,
            src_key_padding_mask=source == PAD,
            tgt_key_padding_mask=target == PAD,
            memory_key_padding_mask=source == PAD,
        )
        return F.linear(hidden, self.embedding.weight)


def measure(
    update: Callable[[int], Any], counts: Sequence[int], updates: int, gpu: torch.device
) -> float:
    """Return the target tokens per second of updates."""
    for i in range(WARM_UP):
        update(i)
    synchronize(gpu)
    start = time.perf_counter()
    for i in range(updates):
        update(i)
    synchronize(gpu)
    done = sum(counts[i % len(counts)] for i in range(updates))
    return done / (time.perf_counter() - start)


def described(speed: float, gpu: torch.device, precision: Precision, flops: float) -> Result:
    """Return speed, MFU and peak memory. flops: of training on one source and target token."""
    found: Result = {"tokens_per_second": round(speed), "precision": precision}
    if gpu.type == "cuda":
        found["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    return found | {"mfu": round(speed * flops / peak_matmul_flops(gpu, precision), 3)}


def synchronize(gpu: torch.device) -> None:
    """Wait until a GPU has done what it was given."""
    if gpu.type != "cpu":
        torch.accelerator.synchronize()
