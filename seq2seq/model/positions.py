"""Where in the sentence a token stands."""

import torch
from torch import Tensor


def sinusoids(length: int, dim: int) -> Tensor:
    """Return the sinusoidal position table of Vaswani et al. 2017, section 3.5.

    Returns shape (length, D): the sines of the D/2 frequencies 10000^(-2i/D), then the cosines of
    the same frequencies. (The paper interleaves the two; this is a permutation of it.)
    """
    # In float64: at large positions float32 angles lose digits that the sine then shows.
    exponent = torch.arange(0, dim, 2, dtype=torch.float64) / dim
    position = torch.arange(length, dtype=torch.float64)
    angles = torch.outer(position, 10000.0**-exponent)
    return torch.cat([angles.sin(), angles.cos()], dim=-1).float()
