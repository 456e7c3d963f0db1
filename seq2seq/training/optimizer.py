"""Build, step, save and load the optimisers of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from seq2seq.config import TrainingConfig
from seq2seq.model.transformer import num_matrices
from seq2seq.training.muon import Muon

FUSED_ADAM_DEVICES = ("cpu", "cuda", "meta")
"""Devices on which torch's fused Adam supports `found_inf`; others, such as MPS, ignore it."""


def build_optimizers(
    model: nn.Module, config: TrainingConfig, dtype: torch.dtype
) -> list[torch.optim.Optimizer]:
    """Return the optimisers of the model's parameters; all use the same learning rate.

    adam: Adam for all parameters (Vaswani et al. 2017, section 5.3). muon: Muon, with matmuls in
    `dtype`, for the matrices of the layers, and Adam for embeddings, biases and LayerNorm weights.
    Muon treats the matrices of a concatenated weight (keys and values, swiglu) separately.

    Weight decay (Loshchilov and Hutter 2019) applies to matrices and embeddings only.
    """
    if config.optimizer == "adam":
        return [_adam(model.parameters(), config)]
    named = dict(model.named_parameters())
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
