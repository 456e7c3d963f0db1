"""Several linear maps of the same input as one."""

from __future__ import annotations

from torch import nn


class ConcatenatedLinear(nn.Linear):
    """Linear maps of one shape whose outputs are concatenated, with one weight, (parts * out, in).

    Each part of the weight is a matrix of its own for initialisation and Muon: see `num_matrices`.
    """

    def __init__(self, in_features: int, out_features: int, parts: int) -> None:
        """out_features: of each part."""
        super().__init__(in_features, parts * out_features)
        self.parts = parts


def num_matrices(model: nn.Module) -> dict[str, int]:
    """Return how many matrices each weight concatenates, by its name; others are one matrix."""
    return {
        f"{name}.weight": module.parts
        for name, module in model.named_modules()
        if isinstance(module, ConcatenatedLinear)
    }
