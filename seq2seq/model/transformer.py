"""The encoder-decoder Transformer (Vaswani et al. 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq.config import ModelConfig
from seq2seq.data.packing import Packed
from seq2seq.model.cache import AttentionHeads, DecoderState
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
        return self.encoder(self.source_embedding, source, self.dropouts(source))

    def forward(self, source: Packed, target: Packed) -> Tensor:
        """Return the decoder's hidden states, (N, D), for teacher-forced target tokens.

        Each target sentence starts with the start symbol and ends before the end symbol.
        """
        dropouts = self.dropouts(source, target)
        memory = self.encoder(self.source_embedding, source, dropouts)
        return self.decoder(self.target_embedding, target, dropouts, memory, source)

    def start(
        self, source: Packed, beam: int = 1, heads: AttentionHeads | None = None
    ) -> DecoderState:
        """Encode sources, in main memory, and return the state of a search of this beam width.

        heads: whose attention is summed in the state's `coverage`, if not None.
        """
        lens = source.offsets.diff()[:-1].tolist()
        source = source.to(self.device)
        index, _ = source.rows()
        memory = self.encode(source)[index]  # (B, S, D)
        layers = self.decoder.each_layer()
        memories = [layer.cross_attention.remember(memory) for layer in layers]
        return DecoderState(
            len(layers), self.device, beam=beam, source_lens=lens, memories=memories, heads=heads
        )

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Feed the newest token of every hypothesis, (B, W); return hidden states, (B, W, D)."""
        covered = state.heads is not None
        x, weights = self.decoder.step(self.target_embedding, tokens, state, need_weights=covered)
        if covered:
            state.cover(weights)
        return x

    def score(
        self, tokens: Tensor, labels: Tensor, state: DecoderState, *, need_weights: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Feed whole targets, (B, T); return the log-probability of each label, (B, T).

        If needed, also each layer's weights of the cross-attention, (B, H, T, S).
        """
        x, weights = self.decoder.step(
            self.target_embedding, tokens, state, need_weights=need_weights
        )
        # In chunks, to save memory.
        rows = x.flatten(0, 1).split(SCORED_AT_ONCE)
        found = [
            -F.cross_entropy(self.output(each).float(), ids, reduction="none")
            for each, ids in zip(rows, labels.flatten().split(SCORED_AT_ONCE), strict=True)
        ]
        return torch.cat(found).view_as(labels), weights

    def weights_per_token(self) -> tuple[int, int]:
        """Return the number of weights that each source and each target token is multiplied by."""
        # The decoder projects source tokens to keys and values.
        memory = sum(
            layer.cross_attention.key_value.weight.numel() for layer in self.decoder.each_layer()
        )
        source, target = num_weights(self.encoder), num_weights(self.decoder)
        return source + memory, target - memory + self.output.weight.numel()
