"""Muon: momentum whose direction alone counts, every matrix moved in all its directions alike."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration; they lift small singular values fast, to somewhere near 1."""
NUM_ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) for matrices, its updates scaled to Adam's (Liu et al. 2025).

    It does what torch.optim.Muon does, and besides keeps to the contract of torch's fused Adam:
    where `found_inf` holds a 1, a step changes nothing, and the host need not know.
    """

    found_inf: Tensor | None = None

    def __init__(self, matrices: Iterable[Tensor], *, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": 0.0, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every matrix by its gradient; an element moves by about a fifth of `lr`."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                rate = 0.2 * math.sqrt(max(matrix.shape)) * group["lr"]
                matrix.add_(self._direction(matrix, matrix.grad, group["momentum"]), alpha=-rate)

    def _direction(self, matrix: Tensor, grad: Tensor, momentum: float) -> Tensor:
        """Take the gradient into the momentum and return the orthogonal direction."""
        state = self.state[matrix]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(matrix)
        if self.found_inf is None:
            state["momentum"].lerp_(grad, 1 - momentum)
            return orthogonalised(grad.lerp(state["momentum"], momentum))  # Nesterov's momentum
        grad = torch.where(self.found_inf.bool(), 0, grad)
        good = 1 - self.found_inf.to(grad.dtype)
        state["momentum"].lerp_(grad, (1 - momentum) * good)
        return orthogonalised(grad.lerp(state["momentum"], momentum)) * good


def orthogonalised(matrix: Tensor) -> Tensor:
    """Return nearly the nearest orthogonal matrix, in bf16.

    For M = U S V^T that is U V^T, by five Newton-Schulz steps, so that singular values come out
    between about 0.7 and 1.2.
    """
    a, b, c = COEFFICIENTS
    x = matrix.bfloat16()
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(NUM_ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
