"""The layers of encoder and decoder (Vaswani et al. 2017, sections 3.1 and 3.3)."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq.config import ModelConfig
from seq2seq.model.attention import MultiHeadAttention
from seq2seq.model.cache import AttentionCache
from seq2seq.model.dropout import Dropout


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2 (equation 2), D to F to D."""

    def __init__(self, dim: int, ffn_dim: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, ffn_dim)
        self.down = nn.Linear(ffn_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map each position by itself: (..., D) to (..., D)."""
        return self.down(F.relu(self.up(x)))


class Residual(nn.Module):
    """The residual connection around a sublayer, its dropout, and its layer normalisation.

    post: LayerNorm(x + Dropout(Sublayer(x))), the paper; pre: x + Dropout(Sublayer(LayerNorm(x))).
    """

    def __init__(self, dropout: float, norm: str) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.pre = norm == "pre"

    def forward(
        self, x: Tensor, norm: nn.LayerNorm, sublayer: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Apply `sublayer` to x, (B, T, D)."""
        y = self.dropout(sublayer(norm(x) if self.pre else x))
        return x + y if self.pre else norm(x + y)


class EncoderLayer(nn.Module):
    """Self-attention over the source, then the feed-forward network."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config.dim, config.num_heads)
        self.self_attention_norm = nn.LayerNorm(config.dim)
        self.feed_forward = FeedForward(config.dim, config.ffn_dim)
        self.feed_forward_norm = nn.LayerNorm(config.dim)
        self.residual = Residual(config.dropout, config.norm)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x: (B, S, D); mask: (B, 1, 1, S), True where a source token is."""

        def attend_source(x: Tensor) -> Tensor:
            return self.self_attention(x, *self.self_attention.keys_values(x), mask=mask)

        x = self.residual(x, self.self_attention_norm, attend_source)
        return self.residual(x, self.feed_forward_norm, self.feed_forward)


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the source, then the feed-forward network."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config.dim, config.num_heads)
        self.self_attention_norm = nn.LayerNorm(config.dim)
        self.cross_attention = MultiHeadAttention(config.dim, config.num_heads)
        self.cross_attention_norm = nn.LayerNorm(config.dim)
        self.feed_forward = FeedForward(config.dim, config.ffn_dim)
        self.feed_forward_norm = nn.LayerNorm(config.dim)
        self.residual = Residual(config.dropout, config.norm)

    def project(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values, each (B, H, S, K), of a source memory, (B, S, D)."""
        return self.cross_attention.keys_values(memory)

    def forward(
        self,
        x: Tensor,
        cross: tuple[Tensor, Tensor],
        cross_mask: Tensor,
        cache: AttentionCache | None = None,
    ) -> Tensor:
        """Map x, (B, T, D), with the source's keys and values, each (B, H, S, K).

        With a cache, x is the newest position of every hypothesis, (R, 1, D), and the hypotheses
        of a sentence, R/B of them, attend to the one copy of its source.
        """

        def attend_target(x: Tensor) -> Tensor:
            keys, values = self.self_attention.keys_values(x)
            if cache is not None:
                keys, values = cache.append(keys, values)
            return self.self_attention(x, keys, values, causal=cache is None)

        def attend_source(x: Tensor) -> Tensor:
            grouped = x.reshape(cross_mask.shape[0], -1, x.shape[-1])
            return self.cross_attention(grouped, *cross, mask=cross_mask).view_as(x)

        x = self.residual(x, self.self_attention_norm, attend_target)
        x = self.residual(x, self.cross_attention_norm, attend_source)
        return self.residual(x, self.feed_forward_norm, self.feed_forward)
