"""The optimisers of a run: built, stepped, saved and loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from seq2seq.config import TrainingConfig
from seq2seq.model.transformer import num_matrices
from seq2seq.training.muon import Muon


def build_optimizers(
    model: nn.Module, config: TrainingConfig, dtype: torch.dtype
) -> list[torch.optim.Optimizer]:
    """Return the optimisers of the model's parameters; all use the same learning rate.

    adam: Adam for all parameters (Vaswani et al. 2017, section 5.3). muon: Muon, with products in
    `dtype`, for the matrices of the layers, and Adam for embeddings, biases and LayerNorm weights.
    Keys and values are two matrices, and so are those of swiglu that are concatenated.

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
    """Return Adam in two groups: with weight decay and, for vectors, without."""
    parameters = list(parameters)
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    betas = (config.adam_beta1, config.adam_beta2)
    fused = fused_adam_skips(parameters[0].device)
    return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=config.adam_eps, fused=fused)


def fused_adam_skips(device: torch.device) -> bool:
    """Return whether torch's fused Adam works on a device and obeys `found_inf`."""
    weight = nn.Parameter(torch.ones(1, device=device))
    weight.grad = torch.full_like(weight, torch.nan)
    try:
        adam = torch.optim.AdamW([weight], fused=True)
        adam.found_inf = torch.ones((), device=device)  # type: ignore[attr-defined]
        adam.step()
        return weight.item() == 1
    except RuntimeError:  # not implemented for this device
        return False


def step_optimizers(
    optimizers: Sequence[torch.optim.Optimizer], lr: float, skip: Tensor | None = None
) -> None:
    """Make one step with learning rate `lr` and clear the gradients.

    skip: float32, 1 if the step must change nothing, else 0; only read on the device, unless an
    optimiser does not obey `found_inf`.
    """
    # Torch's name for obeying `found_inf`, as Muon and fused AdamW do.
    obey = all(getattr(x, "_step_supports_amp_scaling", False) for x in optimizers)
    is_skipped = skip is not None and not obey and bool(skip.item())
    for optimizer in optimizers:
        optimizer.found_inf = skip if obey else None  # type: ignore[attr-defined]
        for group in optimizer.param_groups:
            group["lr"] = lr
        if not is_skipped:
            optimizer.step()
        optimizer.zero_grad()


def optimizer_state(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Return a copy in CPU memory of the optimisers' state; all of it must be tensors.

    A key is `{index of the optimiser}.{index of the parameter}.{name of the state}`.
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
    """Restore what `optimizer_state` returned."""
    states: list[dict[int, dict[str, Tensor]]] = [{} for _ in optimizers]
    for key, tensor in tensors.items():
        number, index, name = key.split(".", 2)
        states[int(number)].setdefault(int(index), {})[name] = tensor
    for optimizer, state in zip(optimizers, states, strict=True):
        optimizer.state.clear()  # before the new state needs memory
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
