"""What a decoder remembers between the steps of a search.

B counts sentences here and R rows, the hypotheses; a sentence has R/B of them, side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from seq2seq.model.positions import Rotation


@dataclass(frozen=True)
class Place:
    """Where the newest positions stand, the same for all layers.

    mask: (T, S), True where a new position may attend; None for all. rotation: (T, K/2) each.
    """

    mask: Tensor | None
    rotation: Rotation | None


@dataclass
class AttentionCache:
    """The keys and values of the target tokens so far, each (R, H, length, K).

    capacity: room for so many positions is made at once; beyond it, all are copied at each step.
    """

    capacity: int = 0
    length: int = 0
    _keys: Tensor = field(default_factory=lambda: torch.empty(0))
    _values: Tensor = field(default_factory=lambda: torch.empty(0))

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add positions, keys and values of shape (R, H, T, K), and return all of them."""
        start, self.length = self.length, self.length + keys.shape[2]
        if not start:
            self._keys, self._values = self._with_room(keys), self._with_room(values)
        elif self.length > self._keys.shape[2]:
            self._keys = self._with_room(torch.cat([self._keys[:, :, :start], keys], dim=2))
            self._values = self._with_room(torch.cat([self._values[:, :, :start], values], dim=2))
        else:
            self._keys[:, :, start : self.length] = keys
            self._values[:, :, start : self.length] = values
        return self._keys[:, :, : self.length], self._values[:, :, : self.length]

    def _with_room(self, x: Tensor) -> Tensor:
        if self.capacity <= x.shape[2]:
            return x
        room = x.new_empty(*x.shape[:2], self.capacity, x.shape[3])
        room[:, :, : x.shape[2]] = x
        return room

    def select(self, rows: Tensor) -> None:
        """Keep the rows `rows`, shape (R',), in that order."""
        if self.length:
            self._keys = self._keys[:, :, : self.length].index_select(0, rows)
            self._values = self._values[:, :, : self.length].index_select(0, rows)


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
