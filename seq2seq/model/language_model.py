"""A decoder-only language model (Liu et al. 2018, Radford et al. 2018)."""

from __future__ import annotations

from torch import Tensor, nn

from seq2seq.config import ModelConfig
from seq2seq.data.packing import Packed
from seq2seq.model.cache import DecoderState
from seq2seq.model.network import Network, num_weights
from seq2seq.model.stack import Stack


class LanguageModel(Network):
    """A causal stack over one text, with an output projection tied to the embedding."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(vocab_size, config.dim)
        self.output = nn.Linear(config.dim, vocab_size, bias=config.output_bias)
        if config.tied:
            self.output.weight = self.embedding.weight
        self.decoder = Stack(config, config.decoder_layers, causal=True)
        self.reset_parameters()

    def forward(self, text: Packed) -> Tensor:
        """Return the hidden states, (N, D), that predict the next tokens."""
        return self.decoder(self.embedding, text, self.dropouts(text))

    def start(self, samples: int) -> DecoderState:
        """Return the state of samples that have read nothing, with room for one context."""
        layers, room = len(self.decoder.layers), self.config.context
        return DecoderState(layers, self.device, sentences=samples, capacity=room)

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Feed the newest token of every sample, (R, 1); return logits of the next, (R, V).

        The first step may feed any number of tokens.
        """
        x, _ = self.decoder.step(self.embedding, tokens, state)
        return self.output(x[:, -1])

    def weights_per_token(self) -> tuple[int, int]:
        """Return 0 (there is no source) and the number of weights that each token is multiplied by.

        The products of attention count as two matrices of context times D per layer: for a whole
        context window they are not negligible.
        """
        attention = 2 * self.config.decoder_layers * self.config.context * self.config.dim
        return 0, num_weights(self.decoder) + attention + self.output.weight.numel()
