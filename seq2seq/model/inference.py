"""Models for inference: the weights of linear layers are converted once to the chosen precision.

Embeddings, layer normalisation and residual sums stay in fp32.
"""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq.machine.precision import DTYPES, Precision
from seq2seq.model.layers import Layer
from seq2seq.model.transformer import Network

M = TypeVar("M", bound=Network)


class CastLinear(nn.Module):
    """Linear layer with weights and input cast to `dtype`."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = weight.detach().to(dtype)
        self.bias = None if bias is None else bias.detach().to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


def for_inference(model: M, precision: Precision) -> M:
    """Return a copy of a model for inference; unconverted weights share memory with the model.

    The query, key and value projections of each self-attention are fused.
    """
    shared = {id(parameter): parameter for parameter in model.parameters()}
    model, dtype = copy.deepcopy(model, shared).eval(), DTYPES[precision]
    for module in [*model.modules()]:
        if isinstance(module, Layer):
            attention = module.self_attention
            attention.fused_qkv = CastLinear(*attention.fused_weights(), dtype)
            del attention.query, attention.key_value
        for name, child in [*module.named_children()]:
            if isinstance(child, nn.Linear):
                setattr(module, name, CastLinear(child.weight, child.bias, dtype))
    return model
