"""Attention of the newest tokens of a search to cached keys and values.

B is the number of sentences, Q of queries of each, H of heads of width K = D/H; columns are the
rows of a sentence's pool of keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

FEW = 32
"""Number of queries of a sentence up to which the kernel for CPUs attends."""
IN_ORDER = np.empty((0, 0, 0), dtype=np.int32)


@dataclass(frozen=True)
class Visible:
    """Which columns of their sentence's pool queries attend to."""

    slots: NDArray[np.int64]
    """(B,): the pool of each sentence."""
    lens: NDArray[np.int64]
    """(B,): how many columns."""
    columns: Tensor | None
    """(B, Q, L): which, the first of each row; None for the first columns of the pool."""
    device: torch.device

    @cached_property
    def mask(self) -> Tensor | None:
        """(B, 1, Q or 1, columns): True where a query attends; None if everywhere.

        It is made before hypotheses are selected, which changes their columns.
        """
        longest = int(self.lens.max())
        lens = to_device(self.lens, self.device)[:, None, None]
        inside = torch.arange(longest, device=self.device) < lens
        if self.columns is None:
            return None if int(self.lens.min()) == longest else inside[:, None]
        # A query attends at least to its first column, so that this may stand for no column.
        columns = self.columns[:, :, :longest].long()
        columns = torch.where(inside, columns, columns[:, :, :1])
        shape = *columns.shape[:2], longest * columns.shape[1]
        seen = torch.zeros(shape, dtype=torch.bool, device=self.device)
        return seen.scatter_(2, columns, True)[:, None]

    def read(self, pool: Tensor) -> Tensor:
        """Return what is in use of keys and values, (B, columns, 2D)."""
        width = int(self.lens.max()) * (1 if self.columns is None else self.columns.shape[1])
        used = pool[: len(self.slots), :width]
        if not np.array_equal(self.slots, np.arange(len(self.slots))):
            used = pool[to_device(self.slots, self.device), :width]
        if self.mask is not None and self.device.type == "cpu":  # where the rest is uninitialised
            used = used.masked_fill(~self.mask.any(dim=2)[:, 0, :, None], 0)
        return used


def to_device(x: NDArray[np.int64], device: torch.device) -> Tensor:
    """Copy numbers of the host without waiting for the device."""
    return torch.from_numpy(x).to(device, non_blocking=True)


def attend_cached(
    queries: Tensor, pool: Tensor, visible: Visible | None, num_heads: int, *, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    """Attend from the newest tokens, (B, Q, D or more), to keys and values, (P, columns, 2D).

    visible: None for a first step of several tokens, each of which attends to those up to itself.
    Returns (B, Q, D) and, if they are needed, the weights, (B, H, Q, columns).
    """
    dim = pool.shape[2] // 2
    # The kernel reads cached columns one by one: for many queries torch's attention is faster.
    single = pool.device.type == "cpu" and pool.dtype == torch.float32
    few = queries.shape[1] <= FEW and not need_weights and not queries.requires_grad
    if visible and single and few:
        from seq2seq.machine import kernels  # which not every command has to load

        columns = IN_ORDER if visible.columns is None else visible.columns.numpy()
        found = queries.new_empty(*queries.shape[:2], dim)
        arrays = queries.contiguous().numpy(), pool.numpy(), columns
        kernels.attend(*arrays, visible.slots, visible.lens, num_heads, found.numpy())
        return found, None
    used = pool if visible is None else visible.read(pool)
    heads = (queries[..., :dim], used[..., :dim], used[..., dim:])
    own, keys, values = (x.unflatten(-1, (num_heads, -1)).transpose(1, 2) for x in heads)
    mask = None if visible is None else visible.mask
    if not need_weights:
        found = F.scaled_dot_product_attention(
            own, keys, values, attn_mask=mask, is_causal=visible is None
        )
        return found.transpose(1, 2).flatten(2), None
    own = own * own.shape[-1] ** -0.5  # before the product, which might overflow fp16
    scores = (own @ keys.transpose(2, 3)).float()
    if visible is None:
        mask = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).tril_()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = scores.softmax(dim=-1)
    return (weights.to(values.dtype) @ values).transpose(1, 2).flatten(2), weights
