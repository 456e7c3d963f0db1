"""Muon: momentum whose direction alone counts, every matrix moved in all its directions alike."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration; they lift small singular values fast, to somewhere near 1."""
NUM_ITERATIONS = 5
ELEMENTS_AT_ONCE = 2**20
"""Small matrices are moved together, since one by one they take longer; large ones are not."""


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) for matrices, its updates scaled to Adam's (Liu et al. 2025).

    It does what torch.optim.Muon does, and besides keeps to the contract of torch's fused Adam:
    where `found_inf` holds a 1, a step changes nothing, and the host need not know.
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
        """dtype: of the matrix products; weights and momentum keep their own.

        weight_decay: the share of `lr` by which a step shrinks every matrix.
        """
        defaults = {"lr": 0.0, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(matrices, defaults)
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every matrix by its gradient; an element moves by about a fifth of `lr`."""
        for group in self.param_groups:
            alike: defaultdict[tuple[int, int], list[Tensor]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    alike[min(matrix.shape), max(matrix.shape)].append(matrix)
            if shrink := group["lr"] * group["weight_decay"]:
                self._shrink([m for each in alike.values() for m in each], shrink)
            for (height, width), matrices in alike.items():
                rate = 0.2 * math.sqrt(width) * group["lr"]
                size = max(1, ELEMENTS_AT_ONCE // (height * width))
                for start in range(0, len(matrices), size):
                    self._move(matrices[start : start + size], rate, group["momentum"])

    def _shrink(self, matrices: Sequence[Tensor], share: float) -> None:
        """Take a share off every element."""
        left = 1 - share if self.found_inf is None else 1 - share * (1 - self.found_inf)
        for matrix in matrices:
            matrix.mul_(left)

    def _move(self, matrices: Sequence[Tensor], rate: float, momentum: float) -> None:
        """Move matrices of one shape, lying or standing, together."""
        lying = [m.shape[0] <= m.shape[1] for m in matrices]
        steps = [self._remember(matrix, momentum) for matrix in matrices]
        wide = torch.stack([s if lies else s.T for s, lies in zip(steps, lying, strict=True)])
        directions = orthogonalised(wide.to(self._dtype))
        if self.found_inf is not None:
            directions = directions * (1 - self.found_inf)
        for matrix, direction, lies in zip(matrices, directions, lying, strict=True):
            matrix.add_(direction if lies else direction.T, alpha=-rate)

    def _remember(self, matrix: Tensor, momentum: float) -> Tensor:
        """Take the gradient into the momentum, and return what Nesterov's looks ahead to."""
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


def orthogonalised(matrices: Tensor) -> Tensor:
    """Return nearly the nearest orthogonal matrix of each, (n, rows, columns).

    No matrix has more rows than columns. For M = U S V^T that is U V^T, by five Newton-Schulz
    steps, so that singular values come out between about 0.7 and 1.2.
    """
    a, b, c = COEFFICIENTS
    x = matrices / matrices.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(NUM_ITERATIONS):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x
