"""Model sizes for `seq2seq new`. docs/sizes.md has the measurements."""

from __future__ import annotations

import math
from typing import NamedTuple


class Size(NamedTuple):
    """Model size, its training settings, and how much data it needs to beat the smaller size."""

    name: str
    dim: int
    ffn_dim: int
    num_heads: int
    layers: int
    """Number of encoder layers and of decoder layers."""
    optimizer: str
    lr: float
    batch_tokens: int
    tokens: float
    """Minimum number of training tokens, including repetitions."""
    examples: int
    """Minimum number of distinct training examples."""
    dropouts: tuple[float, float, float]
    """Dropout for few, some and many epochs (see `DROPOUT_EPOCHS`)."""
    context: int = 512


DROPOUT_EPOCHS = 8, 20
"""Maximum numbers of epochs for the first and the second dropout of a size."""
MAX_EPOCHS = 100
"""Maximum number of epochs. More repetitions do not improve a model."""
SIZES = {
    "translation": (
        Size("tiny", 128, 512, 4, 3, "muon", 0.008, 2048, 0, 0, (0.05, 0.15, 0.3)),
        Size("small", 256, 1024, 4, 4, "muon", 0.006, 4096, 30e6, 30_000, (0.1, 0.2, 0.3)),
        Size("medium", 512, 1024, 4, 6, "muon", 0.004, 8192, 200e6, 100_000, (0.1, 0.2, 0.3)),
        Size("base", 512, 2048, 8, 6, "adam", 2.0, 25_000, 1.5e9, 1_000_000, (0.1, 0.1, 0.3)),
        Size("big", 1024, 4096, 16, 6, "adam", 2.0, 25_000, 10e9, 4_000_000, (0.1, 0.3, 0.3)),
    ),
    "language_model": (
        Size("small", 192, 768, 3, 6, "muon", 0.01, 8192, 0, 0, (0.05, 0.1, 0.2), 256),
        Size("medium", 384, 1536, 6, 6, "muon", 0.008, 16_384, 150e6, 10**6, (0.05, 0.2, 0.2), 256),
        Size("large", 512, 2048, 8, 12, "muon", 0.005, 32_768, 2e9, 50_000_000, (0.05, 0.1, 0.2)),
    ),
    "classification": (Size("small", 128, 512, 4, 2, "muon", 0.005, 8192, 0, 0, (0.3, 0.5, 0.5)),),
}


def vocab_size(task: str, num_examples: int) -> int:
    """Return the vocabulary size for a corpus with this number of pairs or texts."""
    if task == "classification":  # its texts are long
        return 8_000 if num_examples < 20_000 else 16_000
    for limit, pieces in ((20_000, 4_000), (400_000, 8_000), (2_000_000, 16_000)):
        if num_examples < limit:
            return pieces
    return 32_000


def dropout(size: Size, epochs: float) -> float:
    """Return the dropout for a number of epochs."""
    few, some = DROPOUT_EPOCHS
    return size.dropouts[0 if epochs <= few else 1 if epochs <= some else 2]


def rounded(number: float) -> int:
    """Return a number rounded up to two significant digits."""
    digits = 10 ** max(0, math.floor(math.log10(max(1.0, number))) - 1)
    return math.ceil(number / digits) * digits
