"""Bits per character of a language model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from seq2seq.data.examples import Tokens, require_context
from seq2seq.data.packing import context_window_batch
from seq2seq.errors import SharedError
from seq2seq.evaluation.split_evaluator import SplitEvaluator
from seq2seq.machine.threads import timed
from seq2seq.model.transformer import LanguageModel
from seq2seq.training.loss import smoothed_cross_entropy

Window = tuple[int, int]
"""Start of a context window, and how many of its last predictions count."""


@dataclass
class TextEvaluator(SplitEvaluator):
    """Evaluates a language model on a text with a sliding context window.

    The window advances by `stride` tokens, and its last `stride` predictions count: each token but
    the first is predicted once, from at least context - stride preceding tokens, except in the
    first window.
    """

    stride: int | None = None
    """By default half a context; in validations a context, so that windows are disjoint."""
    random_windows: int | None = None
    """Also evaluate this many random windows."""

    def __post_init__(self) -> None:
        self.context = self.config.model.context
        default = self.context if self.validation else max(1, self.context // 2)
        self.advance = default if self.stride is None else self.stride
        if not 1 <= self.advance <= self.context:
            raise SharedError(
                f"stride={self.advance} must be from 1 to model.context={self.context}"
            )
        self.tokens = self.data.tokens(self.split)
        self.windows = windows_of(len(self.tokens), self.context, self.advance)[: self.limit]
        pieces = self.data.tokenizer.target.token_bytes()
        self._num_bytes = np.array([len(piece) for piece in pieces])
        # Characters are counted by their first byte: continuation bytes are 10xxxxxx.
        self._num_characters = np.array([sum(b & 0xC0 != 0x80 for b in piece) for piece in pieces])

    def extent(self) -> str:
        """Return on how much of the text it evaluates."""
        return f"{len(self.windows):,} context windows of {len(self.tokens):,} tokens"

    def details(self) -> dict[str, object]:
        """Return the settings of the evaluation."""
        return {"context": self.context, "tokens": len(self.tokens)}

    def __call__(self, model: LanguageModel) -> dict[str, float]:
        """Return nll in nats per token, perplexity, bits per character and per byte, and stride."""
        nll, num_tokens, num_characters, num_bytes = self._sums(model, self.windows)
        bits = nll / math.log(2)
        metrics = {
            "nll": nll / num_tokens,
            "perplexity": math.exp(min(nll / num_tokens, 700)),
            "bits_per_character": bits / max(1.0, num_characters),
            "bits_per_byte": bits / max(1.0, num_bytes),
            "stride": self.advance,
        }
        if count := self.random_windows:
            nll, num_tokens, *_ = self._sums(model, self.draw_windows(count))
            metrics[f"nll_of_{count}_random_windows"] = nll / num_tokens
        return metrics

    def draw_windows(self, count: int) -> list[Window]:
        """Return random context windows of which all predictions count, as nanoGPT does."""
        require_context(len(self.tokens), self.context)
        random = np.random.default_rng(self.config.training.seed)
        starts = random.integers(0, len(self.tokens) - self.context, count)
        return [(start, self.context) for start in starts.tolist()]

    def _sums(self, model: LanguageModel, windows: Sequence[Window]) -> list[float]:
        """Return the summed nll of the counted predictions, and their tokens, characters, bytes."""
        sums = np.zeros(4)
        size = max(1, self.config.training.micro_batch_tokens // self.context)
        own = [windows[i] for i in self.processes.shard(len(windows))]
        length = min(self.context, len(self.tokens) - 1)  # a short text has one window
        for first in range(0, len(own), size):
            part = own[first : first + size]
            rows = np.stack([self.tokens[start : start + length + 1] for start, _ in part])
            nll, labels = text_nll(model, rows, torch.tensor([count for _, count in part]))
            characters, num_bytes = self._num_characters[labels], self._num_bytes[labels]
            sums += nll, len(labels), characters.sum(), num_bytes.sum()
        return self.processes.all_reduce_sum(*sums.tolist())


def windows_of(num_tokens: int, context: int, stride: int) -> list[Window]:
    """Return the windows of a text, each with the number of its last predictions that count."""
    last = num_tokens - 1  # number of predictions
    windows = [(0, min(context, last))]
    done = windows[0][1]
    while done < last:
        count = min(stride, last - done)
        done += count
        windows.append((done - context, count))
    return windows


@torch.inference_mode()
def text_nll(
    model: LanguageModel, rows: Tokens, counts: torch.Tensor
) -> tuple[float, NDArray[np.int64]]:
    """Return the summed nll of the last `counts` predictions of each row, and their tokens.

    rows: (B, L + 1), ids; counts: (B,).
    """
    batch = context_window_batch(rows)
    length = rows.shape[1] - 1
    chosen = (torch.arange(length) >= length - counts[:, None]).flatten()
    on_device = batch.to(model.device)
    labels = batch.labels[chosen]
    with timed("scoring", rows.size, model.device):
        hidden = model(*on_device.inputs)[chosen.to(model.device)]
        _, nll = smoothed_cross_entropy(
            [hidden], model.output.weight, labels.to(model.device), len(labels), 0.0
        )
    return float(nll), labels.numpy()
