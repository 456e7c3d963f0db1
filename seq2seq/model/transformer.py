"""The encoder-decoder Transformer (Vaswani et al. 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq.config import ModelConfig
from seq2seq.data.packing import Packed
from seq2seq.model.attention import Windows
from seq2seq.model.cache import AttentionCache, AttentionHeads, DecoderState
from seq2seq.model.dropout import Dropouts
from seq2seq.model.network import Network, num_weights
from seq2seq.model.stack import Stack

SCORED_AT_ONCE = 1024
"""Number of tokens whose log-probabilities are computed at once."""


class Transformer(Network):
    """Encoder-decoder with one embedding for source, target and output projection.

    With separate vocabularies (`source_vocab_size` given), the source has its own embedding and the
    target shares one with the output projection (section 3.4). Untied, all three are separate.
    """

    def __init__(
        self, config: ModelConfig, vocab_size: int, source_vocab_size: int | None = None
    ) -> None:
        super().__init__(config)
        separate_source = source_vocab_size is not None or not config.tied
        self.target_embedding = nn.Embedding(vocab_size, config.dim)
        self.source_embedding = (
            nn.Embedding(source_vocab_size or vocab_size, config.dim)
            if separate_source
            else self.target_embedding
        )
        self.output = nn.Linear(config.dim, vocab_size, bias=config.output_bias)
        if config.tied:
            self.output.weight = self.target_embedding.weight
        self.encoder = Stack(config, config.encoder_layers)
        self.decoder = Stack(config, config.decoder_layers, causal=True, cross=True)
        self.reset_parameters()

    def encode(self, source: Packed) -> Tensor:
        """Return the encoder output (memory), (M, D), of packed source tokens."""
        return self._encode(source, Windows(source, self.config.num_heads), self.dropouts(source))

    def _encode(self, source: Packed, windows: Windows, dropouts: Dropouts) -> Tensor:
        return self.encoder(self.source_embedding, source, windows, dropouts)

    def forward(self, source: Packed, target: Packed) -> Tensor:
        """Return the decoder's hidden states, (N, D), for teacher-forced target tokens.

        Each target sentence starts with the start symbol and ends before the end symbol.
        """
        sources, targets = (Windows(side, self.config.num_heads) for side in (source, target))
        dropouts = self.dropouts(source, target)
        memory = self._encode(source, sources, dropouts)
        return self.decoder(self.target_embedding, target, targets, dropouts, memory, sources)

    def start(
        self, source: Packed, num_sentences: int, heads: AttentionHeads | None = None
    ) -> DecoderState:
        """Encode sources, one per window, and return the initial state of a search.

        heads: whose attention is summed in the state's `coverage`, if not None.
        """
        memory = self.encode(source)[source.tokens[:num_sentences]]  # (B, S, D)
        cross = [layer.cross_attention.keys_values(memory) for layer in self.decoder.each_layer()]
        mask = source.sentences[:num_sentences] >= 0
        caches = [AttentionCache() for _ in cross]
        return DecoderState(caches, cross, mask[:, None, None, :], heads)

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Feed the newest token of every hypothesis, (R,); return log-probabilities, (R, V)."""
        attention: list[Tensor] | None = [] if state.heads else None
        x = self._advance(tokens[:, None], state, attention)
        if attention:
            state.cover(attention)
        return self.output(x[:, 0]).float().log_softmax(dim=-1)

    def score(
        self, tokens: Tensor, labels: Tensor, state: DecoderState, attention: list[Tensor] | None
    ) -> Tensor:
        """Feed whole targets, (R, T); return the log-probability of each label, (R, T).

        attention: where to append each layer's cross-attention weights, (B, H, W*T, S).
        """
        x = self._advance(tokens, state, attention).flatten(0, 1)
        # In chunks, to save memory.
        pairs = zip(x.split(SCORED_AT_ONCE), labels.flatten().split(SCORED_AT_ONCE), strict=True)
        found = [
            -F.cross_entropy(self.output(rows).float(), ids, reduction="none")
            for rows, ids in pairs
        ]
        return torch.cat(found).view_as(labels)

    def _advance(
        self, tokens: Tensor, state: DecoderState, attention: list[Tensor] | None
    ) -> Tensor:
        return self.decoder.step(
            self.target_embedding, tokens, state.caches, state.cross, state.cross_mask, attention
        )

    def weights_per_token(self) -> tuple[int, int]:
        """Return the number of weights that each source and each target token is multiplied by."""
        # The decoder projects source tokens to keys and values.
        memory = sum(
            layer.cross_attention.key_value.weight.numel() for layer in self.decoder.each_layer()
        )
        source, target = num_weights(self.encoder), num_weights(self.decoder)
        return source + memory, target - memory + self.output.weight.numel()
