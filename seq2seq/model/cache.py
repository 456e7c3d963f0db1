"""What a decoder remembers between the steps of a search.

B counts sentences here and R rows, the hypotheses; a sentence has R/B of them, side by side.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class AttentionCache:
    """The keys and values of the target tokens so far, each (R, H, length, K)."""

    keys: Tensor | None = None
    values: Tensor | None = None

    @property
    def length(self) -> int:
        """How many target positions are cached."""
        return 0 if self.keys is None else self.keys.shape[2]

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add one position, keys and values of shape (R, H, 1, K), and return all of them."""
        if self.keys is not None and self.values is not None:
            keys = torch.cat([self.keys, keys], dim=2)
            values = torch.cat([self.values, values], dim=2)
        self.keys, self.values = keys, values
        return keys, values

    def select(self, rows: Tensor) -> None:
        """Keep the rows `rows`, shape (R',), in that order."""
        if self.keys is not None and self.values is not None:
            self.keys = self.keys.index_select(0, rows)
            self.values = self.values.index_select(0, rows)


@dataclass
class DecoderState:
    """One search's memory: a growing cache a layer, and the encoder's side, fixed.

    cross: for each layer the keys and values of the source, (B, H, S, K), computed once and shared
    by the hypotheses of a sentence. cross_mask: (B, 1, 1, S), True where a source token is.
    """

    caches: list[AttentionCache]
    cross: list[tuple[Tensor, Tensor]]
    cross_mask: Tensor

    @property
    def length(self) -> int:
        """How many target positions are cached."""
        return self.caches[0].length

    def select_rows(self, rows: Tensor) -> None:
        """Reorder the hypotheses; each keeps to its sentence's place."""
        for cache in self.caches:
            cache.select(rows)

    def select_sentences(self, sentences: Tensor) -> None:
        """Keep the encoder's side of these sentences alone; `select_rows` does the rest."""
        # Sentences leave in order of their length, so the longest source shrinks with them.
        mask = self.cross_mask.index_select(0, sentences)
        width = int(mask.sum(dim=-1).max())
        self.cross_mask = mask[..., :width]
        self.cross = [
            (keys.index_select(0, sentences)[:, :, :width],
             values.index_select(0, sentences)[:, :, :width])
            for keys, values in self.cross
        ]  # fmt: skip
