"""An encoder-only text classifier (Devlin et al. 2019, without pre-training)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seq2seq.config import ModelConfig
from seq2seq.data.packing import Packed
from seq2seq.model.network import Network, num_weights
from seq2seq.model.stack import Stack


class Classifier(Network):
    """An encoder, pooled to one vector per text, and a linear layer to the labels."""

    def __init__(self, config: ModelConfig, vocab_size: int, num_labels: int) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(vocab_size, config.dim)
        self.output = nn.Linear(config.dim, num_labels, bias=config.output_bias)
        self.encoder = Stack(config, config.encoder_layers)
        self.reset_parameters()

    def forward(self, text: Packed) -> Tensor:
        """Return one vector per text, (texts, D): the first token's or the mean over all tokens."""
        x = self.encoder(self.embedding, text, self.dropouts(text))
        if self.config.pooling == "first":
            return x[text.offsets[:-2].long()]
        lens = text.offsets.diff()  # the last one is that of the padding
        texts = torch.arange(len(lens), device=x.device)
        # Given output_size, no synchronisation with a GPU is needed.
        owner = torch.repeat_interleave(texts, lens, output_size=len(x))
        acc_dtype = torch.promote_types(x.dtype, torch.float32)
        sums = torch.zeros(len(lens), x.shape[1], dtype=acc_dtype, device=x.device)
        return (sums.index_add(0, owner, x.to(sums)) / lens[:, None].clamp(min=1))[:-1]

    def weights_per_token(self) -> tuple[int, int]:
        """Return the number of weights that each token and each label is multiplied by."""
        return num_weights(self.encoder), self.output.weight.numel()
