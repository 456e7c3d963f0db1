"""Sizes of models, and which one suits a corpus and a machine. docs/sizes.md has the sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Size:
    """A model, how it is trained, and from how much text on it is better than a smaller one."""

    name: str
    model: Mapping[str, Any]
    training: Mapping[str, Any]
    tokens: float
    """Training tokens, repetitions included, from which on it pays."""
    examples: int
    """Distinct training examples from which on it pays."""
    dropouts: tuple[float, float, float]
    """For few, more and many epochs."""


EPOCHS = 8, 20
"""Numbers of epochs up to which the first and the second dropout of a size are used."""
MOST_EPOCHS = 100
"""More repetitions of the same text add nothing."""

MUON = {"optimizer": "muon", "schedule": "cosine", "clip_norm": 1.0}
NOAM = {"optimizer": "adam", "schedule": "noam", "lr": 2.0}

TRANSLATION = (
    Size("tiny", {"dim": 128, "ffn_dim": 512, "num_heads": 4, "layers": 3},
         {**MUON, "lr": 0.008, "batch_tokens": 2048}, 0, 0, (0.05, 0.15, 0.3)),
    Size("small", {"dim": 256, "ffn_dim": 1024, "num_heads": 4, "layers": 4},
         {**MUON, "lr": 0.006, "batch_tokens": 4096}, 30e6, 30_000, (0.1, 0.2, 0.3)),
    Size("medium", {"dim": 512, "ffn_dim": 1024, "num_heads": 4, "layers": 6},
         {**MUON, "lr": 0.004, "batch_tokens": 8192}, 200e6, 100_000, (0.1, 0.2, 0.3)),
    Size("base", {"dim": 512, "ffn_dim": 2048, "num_heads": 8, "layers": 6},
         {**NOAM, "batch_tokens": 25_000}, 1.5e9, 1_000_000, (0.1, 0.1, 0.3)),
    Size("big", {"dim": 1024, "ffn_dim": 4096, "num_heads": 16, "layers": 6},
         {**NOAM, "batch_tokens": 25_000}, 10e9, 4_000_000, (0.1, 0.3, 0.3)),
)  # fmt: skip
LANGUAGE_MODEL = (
    Size("small", {"dim": 192, "ffn_dim": 768, "num_heads": 3, "layers": 6, "context": 256},
         {**MUON, "lr": 0.01, "batch_tokens": 8192}, 0, 0, (0.05, 0.1, 0.2)),
    Size("medium", {"dim": 384, "ffn_dim": 1536, "num_heads": 6, "layers": 6, "context": 256},
         {**MUON, "lr": 0.008, "batch_tokens": 16_384}, 150e6, 1_000_000, (0.05, 0.2, 0.2)),
    Size("large", {"dim": 512, "ffn_dim": 2048, "num_heads": 8, "layers": 12, "context": 512},
         {**MUON, "lr": 0.005, "batch_tokens": 32_768}, 2e9, 50_000_000, (0.05, 0.1, 0.2)),
)  # fmt: skip
CLASSIFICATION = (
    Size("small", {"dim": 128, "ffn_dim": 512, "num_heads": 4, "layers": 2, "context": 512},
         {**MUON, "lr": 0.005, "batch_tokens": 8192}, 0, 0, (0.3, 0.5, 0.5)),
)  # fmt: skip


def vocab_size(num_examples: int) -> int:
    """Return the number of SentencePiece pieces for a corpus of this many pairs or texts."""
    for limit, pieces in ((20_000, 4_000), (400_000, 8_000), (2_000_000, 16_000)):
        if num_examples < limit:
            return pieces
    return 32_000


def dropout(size: Size, epochs: float) -> float:
    """Return the dropout for a number of repetitions of the training text."""
    few, more = EPOCHS
    return size.dropouts[0 if epochs <= few else 1 if epochs <= more else 2]
