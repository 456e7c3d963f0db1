"""Loops compiled for the processor by numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])
REORDERED = {"reassoc", "contract", "nsz", "arcp"}
"""What may be done to sums and products to compute several at once. NaN stays NaN."""


def compiled(signature: str) -> Callable[[F], F]:
    """Compile a function for arguments of these types, once for all later processes."""

    def compile_function(function: F) -> F:
        try:
            kernel: Any = njit(signature, cache=True, fastmath=REORDERED, nogil=True)(function)
        except RuntimeError:  # there is no folder for the cache
            kernel = njit(signature, fastmath=REORDERED, nogil=True)(function)
        return cast(F, kernel)

    return compile_function


@njit(fastmath=REORDERED, inline="always")
def exponentials(x: NDArray[Any], shift: float, bits: NDArray[Any], found: NDArray[Any]) -> float:
    """Fill `found` with exp(x - shift), for x up to `shift`, and return the sum.

    The steps of Cephes' expf, in a form that the compiler makes vectors of: numba's own takes ten
    times as long. bits: (at least as long, int32), to write powers of two to. What is below e^-87
    is e^-87.
    """
    powers = bits.view(np.float32)
    for i in range(len(x)):
        exponent = max(x[i] - shift, np.float32(-87))
        power = np.floor(exponent * np.float32(1.44269504) + np.float32(0.5))
        rest = exponent - power * np.float32(0.693359375) + power * np.float32(2.12194440e-4)
        terms = np.float32(1.9875691500e-4) * rest + np.float32(1.3981999507e-3)
        terms = terms * rest + np.float32(8.3334519073e-3)
        terms = terms * rest + np.float32(4.1665795894e-2)
        terms = terms * rest + np.float32(1.6666665459e-1)
        terms = terms * rest + np.float32(5.0000001201e-1)
        found[i] = terms * rest * rest + rest + np.float32(1)
        bits[i] = (np.int32(power) + np.int32(127)) << np.int32(23)
    total = np.float32(0)
    for i in range(len(x)):
        found[i] *= powers[i]
        total += found[i]
    return total
