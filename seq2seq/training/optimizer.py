"""Adam as the paper has it; and Muon for the matrices, which learns more from few updates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from seq2seq.config import TrainingConfig
from seq2seq.training.muon import Muon


def build_optimizers(model: nn.Module, config: TrainingConfig) -> list[torch.optim.Optimizer]:
    """Return the optimisers that share the model's parameters out; both follow one rate.

    adam: Adam for everything (Vaswani et al. 2017, section 5.3). muon: Muon for the matrices inside
    the layers, and Adam for embeddings, biases and gains.
    """
    matrices = [
        parameter
        for name, parameter in model.named_parameters()
        if config.optimizer == "muon" and parameter.dim() == 2 and "embedding" not in name
    ]
    chosen = {id(parameter) for parameter in matrices}
    adam = torch.optim.Adam(
        [parameter for parameter in model.parameters() if id(parameter) not in chosen],
        lr=0.0,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_eps,
        fused=True,
    )
    return [adam, Muon(matrices)] if matrices else [adam]


def step_optimizers(
    optimizers: Sequence[torch.optim.Optimizer], rate: float, skip: Tensor | None = None
) -> None:
    """Make one step with the learning rate `rate`, and clear the gradients.

    skip: float32, 1 for a step that must change nothing, else 0; it is read on the device alone.
    """
    for optimizer in optimizers:
        optimizer.found_inf = skip  # type: ignore[attr-defined]
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
