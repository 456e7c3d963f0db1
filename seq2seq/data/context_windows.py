"""Training examples of a language model: random context windows of one long text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from seq2seq.data.batching import Order
from seq2seq.data.packing import Batch, pack_grid
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.training_data import Lens
from seq2seq.errors import SharedError

Tokens = NDArray[np.unsignedinteger]
"""Memory-mapped ids of a text."""


class ContextWindows:
    """Windows of one context plus one token; an example is the start of a window.

    An epoch has as many as would cover the text once.
    """

    label_is_token = True
    source_ratio = 1.0

    def __init__(
        self, tokens: Tokens, tokenizer: Tokenizer, *, context: int, checksum: str = ""
    ) -> None:
        require_context(len(tokens), context)
        self.tokens, self.tokenizer = tokens, tokenizer
        self.longest, self.checksum = context, checksum

    def order(self, seed: int, epoch: int) -> Order:
        """Return the starts of one epoch's windows."""
        random = np.random.Generator(np.random.PCG64([seed, epoch]))
        count = len(self.tokens) - self.longest
        return random.integers(0, count, max(1, count // self.longest))

    def lens(self, numbers: Order) -> Lens:
        """Return the number of tokens of each context window."""
        return np.full(len(numbers), self.longest, dtype=np.int32)

    def load(self, numbers: Order, positions: Order, *, seed: int, epoch: int) -> Sequence[Tokens]:
        """Read context windows; there is nothing random in them."""
        return self._read(numbers)

    def _read(self, numbers: Order) -> list[Tokens]:
        return [self.tokens[start : start + self.longest + 1] for start in numbers.tolist()]

    def sizes(self, examples: Sequence[Tokens]) -> tuple[Lens, Lens]:
        """Return the number of tokens of each context window, and 0 for the other side."""
        lens = np.full(len(examples), self.longest, dtype=np.int32)
        return np.zeros_like(lens), lens

    def collate(self, examples: Sequence[Tokens]) -> Batch:
        """Make a batch of context windows; the label of each token is the next one."""
        return context_window_batch(np.stack(examples))

    def worst(self, max_tokens: int) -> Batch:
        """Return the largest batch of context windows; all windows need the same memory."""
        count = max(1, max_tokens // self.longest)
        return context_window_batch(np.zeros((count, self.longest + 1), dtype=np.int64))

    def describe(self, numbers: Order) -> dict[str, list[str]]:
        """Return the context windows' texts."""
        rows = [row.tolist() for row in self._read(numbers)]
        return {"text": self.tokenizer.target.decode(rows)}


def require_context(num_tokens: int, context: int) -> None:
    """Raise UserError unless a text has one context window and a token after it."""
    if not num_tokens:
        raise SharedError("data.text is empty")
    if num_tokens <= context:
        raise SharedError(
            f"a text of {num_tokens} tokens is too short for one window of "
            f"model.context={context} and the token after it: use a longer text or shorter context"
        )


def context_window_batch(rows: NDArray[np.unsignedinteger] | NDArray[np.int64]) -> Batch:
    """Make a batch of rows of L + 1 tokens, (B, L + 1)."""
    rows = rows.astype(np.int64)
    labels = torch.from_numpy(rows[:, 1:].reshape(-1).copy())
    return Batch((pack_grid(rows[:, :-1]),), labels, len(labels))
