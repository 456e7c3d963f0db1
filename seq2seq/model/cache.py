"""Key/value cache of a decoder.

Shapes: B sentences, W hypotheses per sentence, R = B*W hypotheses in all, S tokens of the longest
source, T new tokens per hypothesis, D model width. In `attend_cached` and `attention_weights`, N is
B or R, Q the number of queries, and L the number of keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from seq2seq.machine.devices import to_device

GROWTH = 32
"""Number of positions by which a full cache grows."""


class DecoderState:
    """Encoded sources of a search and the key/value cache of each layer.

    length: number of cached tokens, equal for all hypotheses; `Stack.step` increases it.
    """

    def __init__(
        self,
        layers: int,
        device: torch.device,
        *,
        source_lens: Sequence[int] = (),
        cross_key_values: Sequence[Tensor] = (),
    ) -> None:
        """cross_key_values: for the cross-attention of each layer, (B, S, 2D), if any."""
        self.device, self.length = device, 0
        self.cross_key_values = list(cross_key_values)
        self.source_lens = np.array(source_lens, dtype=np.int64)
        self.mask = self._mask()
        """(B, 1, 1, S): True for source tokens; None if all sources have the same length."""
        self._caches: list[Tensor | None] = [None] * layers
        """Keys and values of each layer, (R, capacity, 2D)."""
        self.alignment_layer: int | None = None
        """Layer whose cross-attention weights are stored in `cross_attention` at each step."""
        self.cross_attention = torch.empty(0)
        """Weights of the latest step, averaged over the heads, (B, W*T, S)."""

    def _mask(self) -> Tensor | None:
        lens = self.source_lens
        if not len(lens) or lens.min() == lens.max():
            return None
        inside = np.arange(lens.max()) < lens[:, None]
        return to_device(inside[:, None, None], self.device)

    def append(self, layer: int, new: Tensor) -> Tensor:
        """Append the keys and values of new tokens, (R, T, 2D), to a layer; return all of them.

        Does not increase `length`.
        """
        end, cache = self.length + new.shape[1], self._caches[layer]
        if cache is None:
            cache = new.new_empty(len(new), max(end, GROWTH), new.shape[2])
        elif cache.shape[1] < end:
            cache = F.pad(cache, (0, 0, 0, GROWTH))
        cache[:, self.length : end] = new
        self._caches[layer] = cache
        return cache[:, :end]

    def select(self, hypotheses: NDArray[np.int64], kept: NDArray[np.int64]) -> None:
        """Keep these of the R hypotheses, possibly repeated, and the sources of the kept sentences.

        kept: positions of the sentences among the B, ascending.
        """
        index = to_device(hypotheses, self.device)
        for layer, cache in enumerate(self._caches):
            if cache is not None:
                picked = cache.new_empty(len(hypotheses), *cache.shape[1:])
                torch.index_select(cache[:, : self.length], 0, index, out=picked[:, : self.length])
                self._caches[layer] = picked
        if len(kept) < len(self.source_lens):
            index, self.source_lens = to_device(kept, self.device), self.source_lens[kept]
            longest = int(self.source_lens.max())
            self.cross_key_values = [
                x.index_select(0, index)[:, :longest] for x in self.cross_key_values
            ]
            self.mask = self._mask()


def attend_cached(
    queries: Tensor, cached: Tensor, mask: Tensor | None, num_heads: int, *, causal: bool = False
) -> Tensor:
    """Attend from queries, (N, Q, D), to cached keys and values, (N, L, 2D).

    mask: (N, 1, 1, L), True where queries may attend. Returns shape (N, Q, D).
    """
    q, k, v = (_heads(x, num_heads) for x in (queries, *cached.chunk(2, dim=-1)))
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    return attended.transpose(1, 2).flatten(2)


def attention_weights(
    queries: Tensor, cached: Tensor, mask: Tensor | None, num_heads: int
) -> Tensor:
    """Return the attention weights averaged over the heads, (N, Q, L), in fp32."""
    q, k = (_heads(x, num_heads).float() for x in (queries, cached.chunk(2, dim=-1)[0]))
    scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(dim=-1).mean(dim=1)


def _heads(x: Tensor, num_heads: int) -> Tensor:
    """Split (N, L, D) into heads, (N, H, L, K)."""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)
