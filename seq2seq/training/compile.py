"""Compile the layers of a model with torch.compile."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from seq2seq.model.network import Network

logger = logging.getLogger(__name__)


def compile_layers(
    model: Network, device: torch.device, backend: str | Callable[..., Any] = "inductor"
) -> None:
    """Compile each layer, except `attend`; log a warning if that does not work.

    Layers share compiled code, which is independent of the number of tokens; encoder and decoder,
    training and evaluation each have their own. backend: see torch.compile.
    """
    try:
        _try_out(device, backend)
    except Exception as error:  # no compiler, no headers, no such Python: it has many ways to fail
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        logger.warning(
            "torch.compile does not work here (%s): the run goes on uncompiled, which changes only "
            "its speed; training.compile=false silences this warning",
            reason,
        )
        return
    # Probabilities of dropout are constants; as variables they would be compiled for twice.
    torch._dynamo.config.specialize_float = True
    for stack in model.stacks():
        for layer in stack.each_layer():
            layer.compile(dynamic=True, backend=backend)


def _try_out(device: torch.device, backend: str | Callable[..., Any]) -> None:
    """Compile a small product, forward and backward."""
    product = torch.compile(torch.nn.Linear(2, 2, device=device), backend=backend)
    product(torch.ones(3, 2, device=device)).sum().backward()
