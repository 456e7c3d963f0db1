"""The encoder-decoder Transformer (Vaswani et al. 2017)."""

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from seq2seq.config import ModelConfig
from seq2seq.data.packing import Packed
from seq2seq.model.attention import Pattern, Windows
from seq2seq.model.cache import AttentionCache, DecoderState
from seq2seq.model.dropout import NO_DROPOUT, Dropout
from seq2seq.model.flash import has_flash
from seq2seq.model.layers import DecoderLayer, EncoderLayer
from seq2seq.model.positions import sinusoids


def _run(layer: nn.Module, *inputs: Tensor | Pattern | Dropout, recompute: bool) -> Tensor:
    """Apply a layer; recompute: keep its inputs alone, and run it again in the backward pass."""
    return checkpoint(layer, *inputs, use_reentrant=False) if recompute else layer(*inputs)


class Encoder(nn.Module):
    """A stack of encoder layers; with pre-norm a last normalisation closes it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.norm = nn.LayerNorm(config.dim) if config.norm == "pre" else nn.Identity()

    def forward(self, x: Tensor, pattern: Pattern, dropout: Dropout, *, recompute: bool) -> Tensor:
        """Map packed source embeddings, (N, D), to the memory, (N, D)."""
        for layer in self.layers:
            x = _run(layer, x, pattern, dropout, recompute=recompute)
        return self.norm(x)


class Decoder(nn.Module):
    """A stack of decoder layers; with pre-norm a last normalisation closes it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.norm = nn.LayerNorm(config.dim) if config.norm == "pre" else nn.Identity()

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        own: Pattern,
        cross: Pattern,
        dropout: Dropout,
        *,
        recompute: bool,
    ) -> Tensor:
        """Map packed target embeddings, (N, D), to hidden states, (N, D)."""
        for layer in self.layers:
            x = _run(layer, x, memory, own, cross, dropout, recompute=recompute)
        return self.norm(x)

    def step(self, x: Tensor, state: DecoderState) -> Tensor:
        """Map the newest position of every hypothesis, (R, 1, D)."""
        for i, layer in enumerate(self.layers):
            layer = cast(DecoderLayer, layer)
            x = layer.step(x, state.cross[i], state.cross_mask, state.caches[i])
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
        self.gradient_checkpointing = False
        """Whether training keeps only what goes into each layer, and computes the rest again."""
        # No buffer: it is neither stored nor exchanged, and grows on one process alone.
        self._positions = sinusoids(256, config.dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Embeddings N(0, 1/D), so that scaled by sqrt(D) they have variance 1; matrices Xavier."""
        for embedding in dict.fromkeys([self.source_embedding, self.target_embedding]):
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

    def embed(self, embedding: nn.Embedding, tokens: Tensor, positions: Tensor, end: int) -> Tensor:
        """Embed tokens, (...), each at its position in the sentence, below `end`: (..., D)."""
        # A table made in inference mode could not be used in training afterwards.
        with torch.inference_mode(False):
            if end > len(self._positions):
                self._positions = sinusoids(max(end, 2 * len(self._positions)), self.config.dim)
            self._positions = self._positions.to(embedding.weight)
        return embedding(tokens) * math.sqrt(self.config.dim) + self._positions[positions]

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.output.weight.device

    @property
    def _recomputes(self) -> bool:
        return self.gradient_checkpointing and self.training and torch.is_grad_enabled()

    def _embed_packed(self, embedding: nn.Embedding, side: Packed, dropout: Dropout) -> Tensor:
        x = self.embed(embedding, side.ids, side.positions, side.tokens.shape[1])
        # Half the bytes from layer to layer; with pre-norm, rounding would pile up layer by layer.
        if self.config.norm == "post" and torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        return dropout.drop(x)

    def _dropout(self, *sides: Packed) -> Dropout:
        """Return the dropout of one pass: none outside training."""
        if not self.training:
            return NO_DROPOUT
        return Dropout(self.config.dropout, self.config.dim * max(len(side.ids) for side in sides))

    def encode(self, source: Packed) -> Tensor:
        """Return the memory, (N, D), of packed source tokens."""
        return self._encode(source, Windows(source, self.config.num_heads), self._dropout(source))

    def _encode(self, source: Packed, windows: Windows, dropout: Dropout) -> Tensor:
        x = self._embed_packed(self.source_embedding, source, dropout)
        pattern = Pattern(windows, windows, flash=self._has_flash(x))
        return self.encoder(x, pattern, dropout, recompute=self._recomputes)

    def _has_flash(self, x: Tensor) -> bool:
        return has_flash(x, self.config.dim // self.config.num_heads)

    def forward(self, source: Packed, target: Packed) -> Tensor:
        """Return the decoder's hidden states, (N, D), for teacher-forced target tokens.

        Each target sentence goes from the start symbol to the last token before its end. `output`
        turns hidden states into logits; the loss does so in parts to save memory.
        """
        sources, targets = (Windows(side, self.config.num_heads) for side in (source, target))
        dropout = self._dropout(source, target)
        memory = self._encode(source, sources, dropout)
        x = self._embed_packed(self.target_embedding, target, dropout)
        flash = self._has_flash(x)
        own = Pattern(targets, targets, causal=True, flash=flash)
        cross = Pattern(targets, sources, flash=flash)
        return self.decoder(x, memory, own, cross, dropout, recompute=self._recomputes)

    def start(self, source: Packed, num_sentences: int) -> DecoderState:
        """Encode sources, a window for each, and return the state from which a search sets out."""
        memory = self.encode(source)[source.tokens[:num_sentences]]  # (B, S, D)
        cross = [cast(DecoderLayer, layer).cross_attention.keys_values(memory)
                 for layer in self.decoder.layers]  # fmt: skip
        mask = source.sentences[:num_sentences] >= 0
        return DecoderState([AttentionCache() for _ in cross], cross, mask[:, None, None, :])

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Feed the newest token of every hypothesis, (R,); return the next one's logits, (R, V)."""
        positions = torch.full_like(tokens, state.length)
        x = self.embed(self.target_embedding, tokens, positions, state.length + 1)
        return self.output(self.decoder.step(x[:, None], state)[:, 0])

    def num_parameters(self) -> int:
        """How many numbers are learned; a tied table counts once."""
        return sum(parameter.numel() for parameter in self.parameters())
