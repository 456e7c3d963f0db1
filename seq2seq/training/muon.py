"""Muon optimiser: momentum with orthogonalised updates."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic Newton-Schulz iteration that moves singular values towards 1."""
NUM_ITERATIONS = 5
MOMENTUM = 0.95
ELEMENTS_AT_ONCE = 2**20
"""Maximum number of elements per batched product. Only small matrices are faster in a batch."""


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024), with updates scaled like Adam's (Liu et al. 2025).

    Unlike torch.optim.Muon, it supports parameters that concatenate several matrices. Like torch's
    fused Adam, it obeys `found_inf`: a step changes nothing if that tensor is 1, else 0, and the
    host does not have to read it.
    """

    found_inf: Tensor
    _step_supports_amp_scaling = True
    """torch's name for support of `found_inf`."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        dtype: torch.dtype,
        *,
        parts: Sequence[int] | None = None,
        weight_decay: float = 0.0,
    ) -> None:
        """dtype: data type of the matrix products; weights and momentum keep their data types.

        parts: number of equal matrices concatenated in each parameter along its first dimension; by
        default 1. weight_decay: decoupled; each step multiplies matrices by 1 - lr * weight_decay.
        """
        # One group for all `parts`: checkpoints store states in the order of the parameters.
        group = {"params": parameters, "parts": list(parts or [1] * len(parameters))}
        super().__init__([group], {"lr": 0.0, "weight_decay": weight_decay})
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all matrices, and overwrite gradients; the RMS of an update is about 0.2 * lr."""
        good = 1 - self.found_inf
        for group in self.param_groups:
            by_shape: defaultdict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for parameter, parts in zip(group["params"], group["parts"], strict=True):
                if not (state := self.state[parameter]):
                    state["momentum"] = torch.zeros_like(parameter)
                direction = self._nesterov(parameter.grad, state["momentum"])
                if decay := group["lr"] * group["weight_decay"]:
                    parameter.mul_(1 - decay * good)
                for pair in zip(parameter.chunk(parts), direction.chunk(parts), strict=True):
                    height, width = pair[0].shape
                    weight, update = pair if height <= width else (pair[0].T, pair[1].T)
                    by_shape[weight.shape].append((weight, update))
            for (height, width), matrices in by_shape.items():
                rate = 0.2 * math.sqrt(width) * group["lr"]
                size = max(1, ELEMENTS_AT_ONCE // (height * width))
                for start in range(0, len(matrices), size):
                    self._update(matrices[start : start + size], rate)

    def _nesterov(self, grad: Tensor, momentum: Tensor) -> Tensor:
        """Update the momentum and return the Nesterov direction, in the memory of the gradient."""
        grad.masked_fill_(self.found_inf.bool(), 0)
        momentum.lerp_(grad, (1 - MOMENTUM) * (1 - self.found_inf))
        return grad.lerp_(momentum, MOMENTUM)

    def _update(self, matrices: Sequence[tuple[Tensor, Tensor]], rate: float) -> None:
        """Update wide matrices of one shape, given with their directions, as a batch."""
        wide = torch.stack([direction for _, direction in matrices])
        if self._dtype == torch.float16:  # to avoid under- and overflow of gradients
            wide = F.normalize(wide.flatten(1)).view_as(wide)
        updates = orthogonalize(wide.to(self._dtype)) * (1 - self.found_inf)
        for (weight, _), update in zip(matrices, updates, strict=True):
            weight.add_(update, alpha=-rate)


def orthogonalize(matrices: Tensor) -> Tensor:
    """Return approximately U V^T of each matrix U S V^T, (n, rows, columns) with rows <= columns.

    Five Newton-Schulz steps give singular values between about 0.7 and 1.2.
    """
    a, b, c = COEFFICIENTS
    x = matrices / matrices.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(NUM_ITERATIONS):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x
