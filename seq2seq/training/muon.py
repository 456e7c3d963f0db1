"""The Muon optimiser: momentum with orthogonalised updates."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic Newton-Schulz iteration, which quickly brings singular values close to 1."""
NUM_ITERATIONS = 5
ELEMENTS_AT_ONCE = 2**20
"""Elements per batched product: small matrices are faster together, large ones are not."""


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024), with updates scaled to those of Adam (Liu et al. 2025).

    In addition to torch.optim.Muon it supports `found_inf`, as torch's fused Adam does: a step
    changes nothing if that tensor is 1, and the host does not have to read it.
    """

    found_inf: Tensor | None = None

    def __init__(
        self,
        matrices: Iterable[Tensor],
        dtype: torch.dtype,
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        """dtype: data type of the matrix products; weights and momentum keep theirs.

        weight_decay: decoupled; each step multiplies every matrix by 1 - lr * weight_decay.
        """
        defaults = {"lr": 0.0, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(matrices, defaults)
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every matrix; the RMS of an update is about 0.2 * lr."""
        for group in self.param_groups:
            by_shape: defaultdict[tuple[int, int], list[Tensor]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    by_shape[min(matrix.shape), max(matrix.shape)].append(matrix)
            if decay := group["lr"] * group["weight_decay"]:
                self._decay([m for same in by_shape.values() for m in same], decay)
            for (height, width), matrices in by_shape.items():
                rate = 0.2 * math.sqrt(width) * group["lr"]
                size = max(1, ELEMENTS_AT_ONCE // (height * width))
                for start in range(0, len(matrices), size):
                    self._update(matrices[start : start + size], rate, group["momentum"])

    def _decay(self, matrices: Sequence[Tensor], decay: float) -> None:
        """Multiply every element by 1 - decay."""
        factor = 1 - decay if self.found_inf is None else 1 - decay * (1 - self.found_inf)
        for matrix in matrices:
            matrix.mul_(factor)

    def _update(self, matrices: Sequence[Tensor], rate: float, momentum: float) -> None:
        """Update matrices of one shape, or its transpose, together."""
        is_wide = [m.shape[0] <= m.shape[1] for m in matrices]
        steps = [self._momentum(matrix, momentum) for matrix in matrices]
        wide = torch.stack([s if keep else s.T for s, keep in zip(steps, is_wide, strict=True)])
        directions = orthogonalize(wide.to(self._dtype))
        if self.found_inf is not None:
            directions = directions * (1 - self.found_inf)
        for matrix, direction, keep in zip(matrices, directions, is_wide, strict=True):
            matrix.add_(direction if keep else direction.T, alpha=-rate)

    def _momentum(self, matrix: Tensor, momentum: float) -> Tensor:
        """Update the momentum and return the Nesterov direction."""
        grad, state = matrix.grad, self.state[matrix]
        assert grad is not None
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(matrix)
        if self.found_inf is None:
            state["momentum"].lerp_(grad, 1 - momentum)
        else:
            grad = torch.where(self.found_inf.bool(), 0, grad)
            good = 1 - self.found_inf.to(grad.dtype)
            state["momentum"].lerp_(grad, (1 - momentum) * good)
        return grad.lerp(state["momentum"], momentum)


def orthogonalize(matrices: Tensor) -> Tensor:
    """Return approximately U V^T for each M = U S V^T, (n, rows, columns) with rows <= columns.

    By five Newton-Schulz steps; the resulting singular values are between about 0.7 and 1.2.
    """
    a, b, c = COEFFICIENTS
    x = matrices / matrices.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(NUM_ITERATIONS):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x
