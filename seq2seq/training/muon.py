"""Muon optimiser: momentum with orthogonalised updates."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic Newton-Schulz iteration that moves singular values towards 1."""
NUM_ITERATIONS = 5
ELEMENTS_AT_ONCE = 2**20
"""Maximum number of elements per batched product. Only small matrices are faster in a batch."""


class Matrix(NamedTuple):
    """A matrix of a parameter, its gradient and its momentum, as views."""

    weight: Tensor
    grad: Tensor
    momentum: Tensor


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024), with updates scaled like Adam's (Liu et al. 2025).

    Unlike torch.optim.Muon, it supports parameters that concatenate several matrices. Like torch's
    fused Adam, it supports `found_inf`: a step changes nothing if that tensor is 1, and the host
    does not have to read it.
    """

    found_inf: Tensor | None = None
    _step_supports_amp_scaling = True
    """torch's name for support of `found_inf`."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        dtype: torch.dtype,
        *,
        parts: Sequence[int] | None = None,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        """dtype: data type of the matrix products; weights and momentum keep their data types.

        parts: number of equal matrices concatenated in each parameter along its first dimension; by
        default 1. weight_decay: decoupled; each step multiplies matrices by 1 - lr * weight_decay.
        """
        # One group for all `parts`: checkpoints store states in the order of the parameters.
        group = {"params": parameters, "parts": list(parts or [1] * len(parameters))}
        super().__init__([group], {"lr": 0.0, "momentum": momentum, "weight_decay": weight_decay})
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all matrices; the RMS of an update is about 0.2 * lr."""
        for group in self.param_groups:
            by_shape: defaultdict[tuple[int, int], list[Matrix]] = defaultdict(list)
            for parameter, parts in zip(group["params"], group["parts"], strict=True):
                for matrix in self._matrices(parameter, parts):
                    by_shape[min(matrix.weight.shape), max(matrix.weight.shape)].append(matrix)
            if decay := group["lr"] * group["weight_decay"]:
                factor = 1 - decay * self._step_factor()
                for matrix in (m for same in by_shape.values() for m in same):
                    matrix.weight.mul_(factor)
            for (height, width), matrices in by_shape.items():
                rate = 0.2 * math.sqrt(width) * group["lr"]
                size = max(1, ELEMENTS_AT_ONCE // (height * width))
                for start in range(0, len(matrices), size):
                    self._update(matrices[start : start + size], rate, group["momentum"])

    def _matrices(self, parameter: Tensor, parts: int) -> list[Matrix]:
        """Return the matrices of a parameter; [] if it has no gradient."""
        if parameter.grad is None:
            return []
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        tensors = (parameter, parameter.grad, state["momentum"])
        return list(map(Matrix, *(tensor.chunk(parts) for tensor in tensors)))

    def _step_factor(self) -> Tensor | float:
        """Return 0 if the step is skipped, else 1."""
        return 1.0 if self.found_inf is None else 1 - self.found_inf

    def _update(self, matrices: Sequence[Matrix], rate: float, momentum: float) -> None:
        """Update matrices of one shape, or transposed shape, as a batch."""
        is_wide = [m.weight.shape[0] <= m.weight.shape[1] for m in matrices]
        steps = [self._nesterov(matrix, momentum) for matrix in matrices]
        wide = torch.stack([s if keep else s.T for s, keep in zip(steps, is_wide, strict=True)])
        if self._dtype == torch.float16:  # to avoid under- and overflow of gradients
            wide = F.normalize(wide.flatten(1)).view_as(wide)
        directions = orthogonalize(wide.to(self._dtype)) * self._step_factor()
        for matrix, direction, keep in zip(matrices, directions, is_wide, strict=True):
            matrix.weight.add_(direction if keep else direction.T, alpha=-rate)

    def _nesterov(self, matrix: Matrix, momentum: float) -> Tensor:
        """Update the momentum and return the Nesterov direction."""
        grad = matrix.grad
        if self.found_inf is None:
            matrix.momentum.lerp_(grad, 1 - momentum)
        else:
            grad = torch.where(self.found_inf.bool(), 0, grad)
            good = 1 - self.found_inf.to(grad.dtype)
            matrix.momentum.lerp_(grad, (1 - momentum) * good)
        return grad.lerp(matrix.momentum, momentum)


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
