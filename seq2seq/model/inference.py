"""Models for inference: the weights of each product converted once, to int8 or half precision.

int8 weights have a scale for each output, and the inputs of each product one that is found when it
is computed (dynamic quantization). Accumulation, attention and normalisation are in fp32.
"""

from __future__ import annotations

import copy
import logging
import statistics
import time
import warnings
from functools import cache
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq.errors import UserError
from seq2seq.machine.precision import DTYPES, WORTHWHILE, Precision, resolve_precision
from seq2seq.model.layers import Layer
from seq2seq.model.transformer import Network

InferencePrecision = Precision | Literal["int8"]
M = TypeVar("M", bound=Network)
PRODUCT = (64, 512, 2048)
"""Rows, inputs and outputs of the product that is measured: a layer's of the base shape."""

logger = logging.getLogger(__name__)


def choose_precision(
    precision: Literal["auto", "fp32", "bf16", "fp16", "int8"],
    device: torch.device,
    *,
    evaluation: bool = False,
) -> InferencePrecision:
    """Return the precision of inference on a device.

    auto: on a GPU bf16 or fp16, if it is faster, on a CPU the fastest by a measured product; in an
    evaluation on a CPU fp32, so that scores do not depend on the machine. An evaluation takes
    another precision than one for other devices. Raises UserError for one that the
    device does not have; int8 that this torch does not have is fp32, with a warning.
    """
    if device.type != "cpu":
        if precision != "int8":
            return resolve_precision(precision, device, key="decoding.precision")
        if evaluation:  # the recipe's, meant for CPUs
            return resolve_precision("auto", device)
        raise UserError("decoding.precision=int8 is for CPUs; on a GPU use bf16 or fp16")
    if precision == "int8" and not has_int8():
        logger.warning("this torch has no int8 products for this processor: fp32 is used")
        return "fp32"
    if precision == "fp16" and not evaluation:
        raise UserError("decoding.precision=fp16 is for GPUs; on a CPU use int8, bf16 or fp32")
    if precision == "auto" or precision == "fp16":
        return "fp32" if evaluation else _fastest()
    return precision


@cache
def _fastest() -> InferencePrecision:
    """Return the fastest precision of products on the CPU."""
    best: InferencePrecision = "fp32"
    least = _seconds(best)
    candidates: dict[InferencePrecision, bool] = {
        "bf16": resolve_precision("auto", torch.device("cpu")) == "bf16", "int8": has_int8(),
    }  # fmt: skip
    for precision, exists in candidates.items():
        if exists and (seconds := _seconds(precision)) * WORTHWHILE < least:
            best, least = precision, seconds
    return best


def has_int8() -> bool:
    """Return whether torch has fast int8 products for this processor."""
    return "x86" in torch.backends.quantized.supported_engines


@torch.inference_mode()
def _seconds(precision: InferencePrecision) -> float:
    """Return the median time of a product."""
    rows, inputs, outputs = PRODUCT
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the processes of a search have
    layer = converted(torch.randn(outputs, inputs), None, precision)
    x, seconds = torch.randn(rows, inputs), []
    for _ in range(7):
        start = time.perf_counter()
        layer(x)
        seconds.append(time.perf_counter() - start)
    torch.set_num_threads(threads)
    return statistics.median(seconds)


class CastLinear(nn.Module):
    """A linear map in a precision of its own."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", weight.to(dtype))
        self.register_buffer("bias", None if bias is None else bias.to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


class Int8Linear(nn.Module):
    """A linear map with int8 weights on a CPU, by the kernels of torch's quantization."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        scales = weight.abs().amax(dim=1).clamp(min=1e-12).double() / 127
        zeros = torch.zeros(len(weight), dtype=torch.int64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # these functions will move to another package
            quantized = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
            self._packed = torch.ops.quantized.linear_prepack(quantized, bias)
        # Without VNNI, two products of 8 bits each could overflow the 16 bits of their sum.
        self._reduce_range = not torch.cpu._is_vnni_supported()

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out); raises FloatingPointError for NaN."""
        product = torch.ops.quantized.linear_dynamic.default
        try:
            mapped: Tensor = product(x.float(), self._packed, self._reduce_range)
        except RuntimeError as error:
            if "ChooseQuantizationParams" in str(error):  # the range of the inputs has no end
                raise FloatingPointError("an input of a product is not a number") from None
            raise
        return mapped


def for_inference(model: M, precision: InferencePrecision) -> M:
    """Return a copy of a model for inference; what is not converted shares its memory.

    The queries, keys and values of each self-attention become one product. Raises
    FloatingPointError for weights that are not finite, which int8 would hide.
    """
    if precision == "int8" and not all(bool(p.isfinite().all()) for p in model.parameters()):
        raise FloatingPointError("a weight is not a finite number")
    shared = {id(parameter): parameter for parameter in model.parameters()}
    model = copy.deepcopy(model, shared).eval()
    for module in [*model.modules()]:
        if isinstance(module, Layer):
            own = module.self_attention
            own.joined = converted(*own.joined_weights(), precision)
            del own.query, own.key_value
    if precision == "fp32":
        return model
    for module in [*model.modules()]:
        for name, child in [*module.named_children()]:
            if isinstance(child, nn.Linear):
                setattr(module, name, converted(child.weight, child.bias, precision))
    return model


def converted(weight: Tensor, bias: Tensor | None, precision: InferencePrecision) -> nn.Module:
    """Return a linear map in a precision."""
    weight, bias = weight.detach(), None if bias is None else bias.detach()
    if precision == "int8":
        return Int8Linear(weight, bias)
    return CastLinear(weight, bias, weight.dtype if precision == "fp32" else DTYPES[precision])
