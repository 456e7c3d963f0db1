"""The decoder alone: a Transformer that continues texts (Liu et al. 2018, Radford et al. 2018)."""

from __future__ import annotations

from torch import Tensor, nn

from seq2seq.config import ModelConfig
from seq2seq.data.packing import Packed
from seq2seq.model.attention import Windows
from seq2seq.model.cache import AttentionCache
from seq2seq.model.network import Network, num_weights
from seq2seq.model.stack import Stack


class LanguageModel(Network):
    """A causal stack over one text, and the output's table tied to that of the embeddings."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(vocab_size, config.dim)
        self.output = nn.Linear(config.dim, vocab_size, bias=False)
        if config.tied:
            self.output.weight = self.embedding.weight
        self.decoder = Stack(config, config.decoder_layers, causal=True)
        self.reset_parameters()

    def forward(self, text: Packed) -> Tensor:
        """Return the hidden states, (N, D), that predict each token's successor."""
        windows = Windows(text, self.config.num_heads)
        return self.decoder(self.embedding, text, windows, self.dropouts(text))

    def start(self) -> list[AttentionCache]:
        """Return an empty memory, with room for a whole context."""
        return [AttentionCache(self.config.context) for _ in self.decoder.layers]

    def step(self, tokens: Tensor, caches: list[AttentionCache]) -> Tensor:
        """Read the newest tokens of every sample, (R, T); return the next one's logits, (R, V)."""
        return self.output(self.decoder.step(self.embedding, tokens, caches)[:, -1])

    def weights_per_token(self) -> tuple[int, int]:
        """Return how many weights each source token meets, none, and how many each target token.

        Attention's own products count as two more matrices of context times D in each layer: at the
        length of a context window they are no trifle.
        """
        attention = 2 * self.config.decoder_layers * self.config.context * self.config.dim
        return 0, num_weights(self.decoder) + attention + self.output.weight.numel()
