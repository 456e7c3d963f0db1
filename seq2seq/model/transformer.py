"""The encoder-decoder Transformer (Vaswani et al. 2017)."""

import math
from typing import cast

import torch
from torch import Tensor, nn

from seq2seq.config import ModelConfig
from seq2seq.model.cache import AttentionCache, DecoderState
from seq2seq.model.dropout import Dropout
from seq2seq.model.layers import DecoderLayer, EncoderLayer
from seq2seq.model.positions import sinusoids


class Encoder(nn.Module):
    """A stack of encoder layers; with pre-norm a last normalisation closes it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.norm = nn.LayerNorm(config.dim) if config.norm == "pre" else nn.Identity()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map source embeddings, (B, S, D), to the memory, (B, S, D)."""
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


class Decoder(nn.Module):
    """A stack of decoder layers; with pre-norm a last normalisation closes it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.norm = nn.LayerNorm(config.dim) if config.norm == "pre" else nn.Identity()

    def project(self, memory: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return each layer's keys and values of the source memory."""
        return [cast(DecoderLayer, layer).project(memory) for layer in self.layers]

    def forward(
        self,
        x: Tensor,
        cross: list[tuple[Tensor, Tensor]],
        cross_mask: Tensor,
        caches: list[AttentionCache] | None = None,
    ) -> Tensor:
        """Map target embeddings, (B, T, D), to hidden states, (B, T, D)."""
        for i, layer in enumerate(self.layers):
            x = layer(x, cross[i], cross_mask, caches[i] if caches else None)
        return self.norm(x)


class Transformer(nn.Module):
    """Encoder-decoder with one embedding table for source, target and output.

    Where the two languages have vocabularies of their own (`source_vocab_size` given), the source
    has its own table and the target shares its with the output (section 3.4).
    """

    def __init__(
        self, config: ModelConfig, vocab_size: int, source_vocab_size: int | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.target_embedding = nn.Embedding(vocab_size, config.dim)
        self.source_embedding = (
            self.target_embedding
            if source_vocab_size is None
            else nn.Embedding(source_vocab_size, config.dim)
        )
        self.output = nn.Linear(config.dim, vocab_size, bias=False)
        self.output.weight = self.target_embedding.weight
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.dropout = Dropout(config.dropout)
        # No buffer: it is neither stored nor exchanged, and grows on one process alone.
        self._positions = sinusoids(256, config.dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Embeddings N(0, 1/D), so that scaled by sqrt(D) they have variance 1; matrices Xavier."""
        for embedding in {self.source_embedding, self.target_embedding}:
            nn.init.normal_(embedding.weight, std=self.config.dim**-0.5)
        for name, parameter in self.named_parameters():
            if "embedding" in name or "norm" in name:
                continue
            if parameter.dim() == 1:
                nn.init.zeros_(parameter)
            elif "key_value" in name:
                # Two matrices in one table: each gets the range of its own shape.
                for half in parameter.data.chunk(2, dim=0):
                    nn.init.xavier_uniform_(half)
            else:
                nn.init.xavier_uniform_(parameter)

    def embed(self, embedding: nn.Embedding, tokens: Tensor, start: int = 0) -> Tensor:
        """Embed tokens, (B, T), whose first stands at position `start`: (B, T, D)."""
        end = start + tokens.shape[1]
        # A table made in inference mode could not be used in training afterwards.
        with torch.inference_mode(False):
            if end > len(self._positions):
                self._positions = sinusoids(max(end, 2 * len(self._positions)), self.config.dim)
            self._positions = self._positions.to(embedding.weight)
        x = embedding(tokens) * math.sqrt(self.config.dim) + self._positions[start:end]
        return self.dropout(x)

    def encode(self, source: Tensor, source_mask: Tensor) -> Tensor:
        """Return the memory, (B, S, D), of source tokens, (B, S); the mask is True on tokens."""
        x = self.embed(self.source_embedding, source)
        return self.encoder(x, source_mask[:, None, None, :])

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        """Return the decoder's hidden states, (B, T, D), for teacher-forced input.

        source: (B, S); source_mask: (B, S), True on tokens; target: (B, T), from the start symbol.
        `output` turns hidden states into logits; the loss does so in parts to save memory.
        """
        memory = self.encode(source, source_mask)
        x = self.embed(self.target_embedding, target)
        cross_mask = source_mask[:, None, None, :]  # (B, 1, 1, S)
        return self.decoder(x, self.decoder.project(memory), cross_mask)

    def start(self, source: Tensor, source_mask: Tensor) -> DecoderState:
        """Encode the sources, (B, S), and return the state from which a search sets out."""
        cross = self.decoder.project(self.encode(source, source_mask))
        caches = [AttentionCache() for _ in cross]
        return DecoderState(caches, cross, source_mask[:, None, None, :])

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Feed the newest token of every hypothesis, (R,); return the next one's logits, (R, V)."""
        x = self.embed(self.target_embedding, tokens[:, None], state.length)
        hidden = self.decoder(x, state.cross, state.cross_mask, state.caches)
        return self.output(hidden[:, 0])

    def num_parameters(self) -> int:
        """How many numbers are learned; a tied table counts once."""
        return sum(parameter.numel() for parameter in self.parameters())
