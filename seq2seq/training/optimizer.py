"""The optimisers of a run: Adam and Muon, with their state in checkpoints."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq.config import TrainingConfig
from seq2seq.model.transformer import num_matrices

FUSED_ADAM_DEVICES = ("cpu", "cuda", "meta")
"""Devices on which torch's fused Adam supports `found_inf`; others, such as MPS, ignore it."""

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic Newton-Schulz iteration that moves singular values towards 1."""
NUM_ITERATIONS = 5
MOMENTUM = 0.95
ELEMENTS_AT_ONCE = 2**20
"""Maximum number of elements per batched product. Only small matrices are faster in a batch."""


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024), with updates scaled like Adam's (Liu et al. 2025).

    Unlike torch.optim.Muon, it supports parameters that concatenate several matrices. Like torch's
    fused Adam, it obeys `found_inf`: a step changes nothing if that tensor is 1, else 0, and the
    host does not have to read it.
    """

    found_inf: Tensor
    _step_supports_amp_scaling = True

    def __init__(
        self,
        parameters: Sequence[Tensor],
        dtype: torch.dtype,
        *,
        parts: Sequence[int] | None = None,
        weight_decay: float = 0.0,
    ) -> None:
        """dtype: data type of the matrix products; weights and momentum keep their data types.

        parts: number of equal matrices concatenated in each parameter along its first dimension; by
        default 1. weight_decay: decoupled; each step multiplies matrices by 1 - lr * weight_decay.
        """
        # One group for all `parts`: checkpoints store states in the order of the parameters.
        group = {"params": parameters, "parts": list(parts or [1] * len(parameters))}
        super().__init__([group], {"lr": 0.0, "weight_decay": weight_decay})
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all matrices, and overwrite gradients; the RMS of an update is about 0.2 * lr."""
        good = 1 - self.found_inf
        for group in self.param_groups:
            by_shape: defaultdict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for parameter, parts in zip(group["params"], group["parts"], strict=True):
                if not (state := self.state[parameter]):
                    state["momentum"] = torch.zeros_like(parameter)
                direction = self._nesterov(parameter.grad, state["momentum"])
                if decay := group["lr"] * group["weight_decay"]:
                    parameter.mul_(1 - decay * good)
                for pair in zip(parameter.chunk(parts), direction.chunk(parts), strict=True):
                    height, width = pair[0].shape
                    weight, update = pair if height <= width else (pair[0].T, pair[1].T)
                    by_shape[weight.shape].append((weight, update))
            for (height, width), matrices in by_shape.items():
                rate = 0.2 * math.sqrt(width) * group["lr"]
                size = max(1, ELEMENTS_AT_ONCE // (height * width))
                for start in range(0, len(matrices), size):
                    self._update(matrices[start : start + size], rate)

    def _nesterov(self, grad: Tensor, momentum: Tensor) -> Tensor:
        """Update the momentum and return the Nesterov direction, in the memory of the gradient."""
        grad.masked_fill_(self.found_inf.bool(), 0)
        momentum.lerp_(grad, (1 - MOMENTUM) * (1 - self.found_inf))
        return grad.lerp_(momentum, MOMENTUM)

    def _update(self, matrices: Sequence[tuple[Tensor, Tensor]], rate: float) -> None:
        """Update wide matrices of one shape, given with their directions, as a batch."""
        wide = torch.stack([direction for _, direction in matrices])
        if self._dtype == torch.float16:  # to avoid under- and overflow of gradients
            wide = F.normalize(wide.flatten(1)).view_as(wide)
        updates = orthogonalize(wide.to(self._dtype)) * (1 - self.found_inf)
        for (weight, _), update in zip(matrices, updates, strict=True):
            weight.add_(update, alpha=-rate)


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


def build_optimizers(
    model: nn.Module, config: TrainingConfig, dtype: torch.dtype
) -> list[torch.optim.Optimizer]:
    """Return the optimisers of the model's parameters; all use the same learning rate.

    adam: Adam for all parameters (Vaswani et al. 2017, section 5.3). muon: Muon, with matmuls in
    `dtype`, for the matrices of the layers, and Adam for embeddings, biases and LayerNorm weights.
    Muon treats the matrices of a concatenated weight (keys and values, swiglu) separately.

    Weight decay (Loshchilov and Hutter 2019) applies to matrices and embeddings only.
    """
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if config.optimizer == "adam":
        return [_adam(named.values(), config)]
    matrices = {name: p for name, p in named.items() if p.dim() == 2 and ".layers." in name}
    concatenated = num_matrices(model)
    muon = Muon(
        [*matrices.values()],
        dtype,
        parts=[concatenated.get(name, 1) for name in matrices],
        weight_decay=config.weight_decay,
    )
    return [_adam((p for name, p in named.items() if name not in matrices), config), muon]


def _adam(parameters: Iterable[nn.Parameter], config: TrainingConfig) -> torch.optim.AdamW:
    """Return Adam with weight decay for matrices and without for vectors."""
    parameters = list(parameters)
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    betas = (config.adam_beta1, config.adam_beta2)
    fused = parameters[0].device.type in FUSED_ADAM_DEVICES
    return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=config.adam_eps, fused=fused)


def step_optimizers(optimizers: Sequence[torch.optim.Optimizer], lr: float, skip: Tensor) -> None:
    """Make one step with learning rate `lr` and clear the gradients.

    skip: float32 scalar, 1 to skip the step, else 0. The host only reads it if an optimiser does
    not support `found_inf`.
    """
    # torch's name for support of `found_inf`, as in Muon and fused AdamW.
    supported = [x for x in optimizers if getattr(x, "_step_supports_amp_scaling", False)]
    for optimizer in supported:
        optimizer.found_inf = skip  # type: ignore[attr-defined]
    is_skipped = len(supported) < len(optimizers) and bool(skip.item())
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr
        if not is_skipped:
            optimizer.step()
        optimizer.zero_grad()


def optimizer_state(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Return a copy of the optimisers' state in CPU memory; all values must be tensors.

    Keys are `{index of the optimiser}.{index of the parameter}.{name of the state}`.
    """
    return {
        f"{number}.{index}.{name}": tensor.detach().to("cpu", copy=True).contiguous()
        for number, optimizer in enumerate(optimizers)
        for index, tensors in optimizer.state_dict()["state"].items()
        for name, tensor in tensors.items()
    }


def load_optimizer_state(
    optimizers: Sequence[torch.optim.Optimizer], tensors: Mapping[str, Tensor]
) -> None:
    """Restore a state returned by `optimizer_state`."""
    states: list[dict[int, dict[str, Tensor]]] = [{} for _ in optimizers]
    for key, tensor in tensors.items():
        number, index, name = key.split(".", 2)
        states[int(number)].setdefault(int(index), {})[name] = tensor
    for optimizer, state in zip(optimizers, states, strict=True):
        optimizer.state.clear()  # before the new state needs memory
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
