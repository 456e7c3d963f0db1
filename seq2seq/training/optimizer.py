"""Adam as the paper has it; and Muon for the matrices, which learns more from few updates."""

from __future__ import annotations

import torch
from torch import nn

from seq2seq.config import TrainingConfig


def build_optimizers(model: nn.Module, config: TrainingConfig) -> list[torch.optim.Optimizer]:
    """Return the optimisers that share the model's parameters out; both follow one rate.

    adam: Adam for everything (Vaswani et al. 2017, section 5.3). muon: Muon (Jordan et al. 2024)
    for the matrices inside the layers, its updates scaled to the size of Adam's (Liu et al. 2025),
    and Adam for embeddings, biases and gains.
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
    if not matrices:
        return [adam]
    muon = torch.optim.Muon(
        matrices, lr=0.0, weight_decay=0.0, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    return [adam, muon]
