"""The base class of all models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from seq2seq.config import ModelConfig
from seq2seq.data.packing import Packed
from seq2seq.model.dropout import NO_DROPOUT, Dropouts
from seq2seq.model.linear import num_matrices
from seq2seq.model.stack import Stack


class Network(nn.Module, ABC):
    """Stacks of layers between embeddings and an output projection.

    `forward` takes the packed inputs of a batch and returns hidden states, row i for label i;
    `output` maps them to logits. The loss does so in chunks to save memory.
    """

    output: nn.Linear

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config

    def stacks(self) -> Iterator[Stack]:
        """Yield the encoder, the decoder, or both."""
        return (module for module in self.children() if isinstance(module, Stack))

    def embeddings(self) -> list[nn.Embedding]:
        """Return the embeddings, each once."""
        return [module for module in self.children() if isinstance(module, nn.Embedding)]

    def reset_parameters(self) -> None:
        """Embeddings N(0, 1/D), so that scaled by sqrt(D) they have variance 1; matrices Xavier."""
        for module in [*self.embeddings(), *(stack.positions for stack in self.stacks())]:
            if isinstance(weight := getattr(module, "weight", None), Tensor):
                nn.init.normal_(weight, std=self.config.dim**-0.5)
        parts = num_matrices(self)
        for name, parameter in self.named_parameters():
            if "embedding" in name or "positions" in name or "norm" in name:
                continue
            if parameter.dim() == 1:
                nn.init.zeros_(parameter)
                continue
            for matrix in parameter.data.chunk(parts.get(name, 1)):
                nn.init.xavier_uniform_(matrix)

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next(self.parameters()).device

    @property
    def gradient_checkpointing(self) -> bool:
        """Whether training stores only the input of each layer and recomputes the rest."""
        return all(stack.gradient_checkpointing for stack in self.stacks())

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, choice: bool) -> None:
        for stack in self.stacks():
            stack.gradient_checkpointing = choice

    def dropouts(self, *inputs: Packed) -> Dropouts:
        """Return the dropouts of one pass over these inputs; none outside training."""
        if not self.training:
            return NO_DROPOUT
        return Dropouts.of(self.config, max(len(each.ids) for each in inputs))

    @abstractmethod
    def weights_per_token(self) -> tuple[int, int]:
        """Return the number of weights that each source token and each label is multiplied by."""

    def training_flops(self, source_tokens: int, target_tokens: int, passes: int = 1) -> float:
        """Return the floating-point operations of training on tokens, in `passes` passes.

        Products with the weights, two operations per weight and token forward and four backward
        (Kaplan et al. 2020, section 2.1), and the attention of a language model. The attention of
        other models (a few per cent for sentences), padding and recomputation are not counted.
        """
        source, target = self.weights_per_token()
        return 6.0 * passes * (source_tokens * source + target_tokens * target)

    def num_parameters(self) -> int:
        """Return the number of parameters; tied ones count once."""
        return sum(parameter.numel() for parameter in self.parameters())


def num_weights(module: nn.Module) -> int:
    """Return the number of weights, without biases, of a module's linear layers."""
    linears = (each for each in module.modules() if isinstance(each, nn.Linear))
    return sum(linear.weight.numel() for linear in linears)
