"""The encoder alone: it classifies texts (Devlin et al. 2019, without pre-training)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seq2seq.config import ModelConfig
from seq2seq.data.packing import Packed
from seq2seq.model.attention import Windows
from seq2seq.model.network import Network, num_weights
from seq2seq.model.stack import Stack


class Classifier(Network):
    """An encoder, one vector for each text, and a score for each label."""

    def __init__(self, config: ModelConfig, vocab_size: int, num_labels: int) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(vocab_size, config.dim)
        self.output = nn.Linear(config.dim, num_labels, bias=False)
        self.encoder = Stack(config, config.encoder_layers)
        self.reset_parameters()

    def forward(self, text: Packed) -> Tensor:
        """Return a vector for each text, (texts, D): its first token's, or the mean of all."""
        windows, dropouts = Windows(text, self.config.num_heads), self.dropouts(text)
        x = self.encoder(self.embedding, text, windows, dropouts)
        if self.config.pooling == "first":
            return x[text.offsets[:-2].long()]
        lens = text.offsets.diff()  # the last is the filler's
        texts = torch.arange(len(lens), device=x.device)
        owner = torch.repeat_interleave(texts, lens, output_size=len(x))  # or a GPU is waited for
        exact = torch.promote_types(x.dtype, torch.float32)
        sums = torch.zeros(len(lens), x.shape[1], dtype=exact, device=x.device)
        return (sums.index_add(0, owner, x.to(sums)) / lens[:, None].clamp(min=1))[:-1]

    def weights_per_token(self) -> tuple[int, int]:
        """Return how many weights each token of a text meets, and how many each label."""
        return num_weights(self.encoder), self.output.weight.numel()
